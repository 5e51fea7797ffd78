// Every vector path of this processor against the scalar one, bit by bit, without Python: for processors that are
// emulated. The scalar path itself is tested against torch in tests/kernels/test_casts_of_arrays.py.
//
//     kernels_check [EVERY]     every EVERY-th of all 2^32 float32 (251 when not given; 1: all)
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/dispatch.hpp"
#include "kernels/product.hpp"

namespace {

using namespace habana_mp::kernels;
using Bytes = std::vector<unsigned char>;

constexpr Float types[] = {Float::f32, Float::bf16, Float::f16};
int failures = 0;

std::uint32_t element(const Bytes& bytes, Float type, std::size_t at) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, bytes.data() + at * size_of(type), size_of(type));
  return bits;
}

bool is_nan(std::uint32_t bits, Float type) {
  switch (type) {
    case Float::f32:
      return (bits & 0x7fffffffU) > 0x7f800000U;
    case Float::bf16:
      return (bits & 0x7fffU) > 0x7f80U;
    case Float::f16:
      return (bits & 0x7fffU) > 0x7c00U;
  }
  return false;
}

void compare(const std::string& what, const Bytes& ours, const Bytes& expected, Float type) {
  for (std::size_t i = 0; i < expected.size() / size_of(type); ++i) {
    const std::uint32_t one = element(ours, type, i);
    const std::uint32_t other = element(expected, type, i);
    if (one != other && !(is_nan(one, type) && is_nan(other, type))) {
      std::printf("%s: element %zu is %#x, expected %#x\n", what.c_str(), i, one, other);
      ++failures;
      return;
    }
  }
}

Bytes cast_by(const Table& table, const Bytes& in, Float from, Float to, unsigned threads = 1) {
  const std::size_t count = in.size() / size_of(from);
  Bytes out(count * size_of(to));
  cast_with(table, {in.data(), from, out.data(), to, count}, threads);
  return out;
}

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

Bytes sample(Float type, std::size_t count) {
  Bytes bytes(count * size_of(type));
  std::uint64_t state = 1;
  for (unsigned char& byte : bytes) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    byte = static_cast<unsigned char>(state >> 56);
  }
  return bytes;
}

void check_values(const Table& table, std::uint64_t every) {
  const Table& scalar = *supported().front();
  const std::string name = table.name;
  std::vector<std::uint16_t> halves(65536);
  for (std::size_t i = 0; i < halves.size(); ++i) {
    halves[i] = static_cast<std::uint16_t>(i);
  }
  for (const Float from : {Float::bf16, Float::f16}) {
    for (const Float to : types) {
      const Bytes in = bytes_of(halves);
      compare(name + ", all of 16 bits", cast_by(table, in, from, to), cast_by(scalar, in, from, to), to);
    }
  }
  constexpr std::size_t chunk = 1U << 20;
  std::vector<std::uint32_t> words;
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += every) {
    words.push_back(static_cast<std::uint32_t>(bits));
    if (words.size() == chunk || bits + every >= std::uint64_t{1} << 32) {
      const Bytes in = bytes_of(words);
      for (const Float to : {Float::bf16, Float::f16}) {
        compare(name + ", float32", cast_by(table, in, Float::f32, to), cast_by(scalar, in, Float::f32, to), to);
      }
      words.clear();
    }
  }
}

void check_lengths(const Table& table) {
  const Table& scalar = *supported().front();
  for (const Float from : types) {
    for (const Float to : types) {
      for (std::size_t count = 0; count < 300; ++count) {
        const Bytes in = sample(from, count);
        compare(std::string(table.name) + ", length " + std::to_string(count), cast_by(table, in, from, to),
                cast_by(scalar, in, from, to), to);
      }
      const Bytes in = sample(from, 100'003);
      compare(std::string(table.name) + ", threads", cast_by(table, in, from, to, 3), cast_by(scalar, in, from, to),
              to);
    }
  }
}

// A transposed array, its elements placed by the plainest loop.
void check_strides(const Table& table) {
  const std::size_t rows = 131;
  const std::size_t columns = 77;
  for (const Float from : types) {
    for (const Float to : types) {
      const Bytes in = sample(from, rows * columns);
      const Bytes flat = cast_by(*supported().front(), in, from, to);
      Bytes expected(flat.size());
      for (std::size_t row = 0; row < rows; ++row) {
        for (std::size_t column = 0; column < columns; ++column) {
          std::memcpy(expected.data() + (column * rows + row) * size_of(to),
                      flat.data() + (row * columns + column) * size_of(to), size_of(to));
        }
      }
      Bytes out(flat.size());
      const auto step = static_cast<std::ptrdiff_t>(size_of(from));
      const auto out_step = static_cast<std::ptrdiff_t>(size_of(to));
      const Job job{in.data(),
                    from,
                    out.data(),
                    to,
                    {{rows, step * static_cast<std::ptrdiff_t>(columns), out_step},
                     {columns, step, out_step * static_cast<std::ptrdiff_t>(rows)}}};
      cast_with(table, job, 2);
      compare(std::string(table.name) + ", transposed", out, expected, to);
    }
  }
}

// Products of small whole numbers, whose sums are exact in float32 and in the kinds that are rounded to.
void check_products(const Table& table) {
  if (table.fused == nullptr) return;
  for (const Float kind : {Float::bf16, Float::f16}) {
    const auto bits = [&](std::size_t value) {  // of 0 to 3
      const std::uint32_t f32 = std::bit_cast<std::uint32_t>(static_cast<float>(value));
      std::uint16_t made = 0;
      table.convert[0][static_cast<std::size_t>(kind)](&f32, &made, 1);
      return made;
    };
    for (const std::size_t rows : {1, 3, 5, 17}) {
      for (const std::size_t inner : {1, 2, 7, 40, 519}) {
        for (const std::size_t outer : {1, 7, 8, 9, 33}) {
          for (const bool inner_first : {false, true}) {
            std::vector<std::uint16_t> input(rows * inner);
            std::vector<std::uint16_t> weight(inner * outer);
            std::vector<std::uint16_t> result(rows * outer);
            std::vector<std::uint16_t> expected(rows * outer);
            std::vector<float> exact(rows * outer);
            const auto left = [](std::size_t row, std::size_t k) { return (row + k) % 7 == 0 ? 1U : 0U; };
            const auto right = [](std::size_t column, std::size_t k) { return (column * 3 + k) % 4; };
            for (std::size_t k = 0; k < inner; ++k) {
              for (std::size_t i = 0; i < rows; ++i) input[i * inner + k] = bits(left(i, k));
              for (std::size_t j = 0; j < outer; ++j) {
                weight[inner_first ? k * outer + j : j * inner + k] = bits(right(j, k));
              }
            }
            for (std::size_t i = 0; i < rows; ++i) {
              for (std::size_t j = 0; j < outer; ++j) {
                std::size_t sum = 0;
                for (std::size_t k = 0; k < inner; ++k) sum += left(i, k) * right(j, k);
                expected[i * outer + j] = bits(sum);
                exact[i * outer + j] = static_cast<float>(sum);
              }
            }
            Product product{.kind = kind,
                            .input = input.data(),
                            .input_step = inner,
                            .rows = rows,
                            .inner = inner,
                            .weight = weight.data(),
                            .weight_step = inner_first ? outer : inner,
                            .inner_first = inner_first,
                            .outer = outer,
                            .bias = nullptr,
                            .float32_result = false,
                            .result = result.data(),
                            .result_step = outer};
            std::vector<float> sums(rows * outer);
            bool is_right = multiply_with(table, product, 2) && result == expected;
            product.float32_result = true;
            product.result = sums.data();
            is_right = multiply_with(table, product, 2) && sums == exact && is_right;
            if (!is_right) {
              ++failures;
              std::printf("%s: a product of %zu x %zu x %zu is wrong\n", table.name, rows, inner, outer);
            }
          }
        }
      }
    }
  }
}

// As a program has it that flushes denormals, or rounds another way.
void set_unusual_mode() {
#if defined(__aarch64__)
  const std::uint64_t flush_and_round_up = 1U << 24 | 1U << 22;
  __asm__ volatile("msr fpcr, %0" : : "r"(flush_and_round_up));
#endif
}

}  // namespace

int main(int count, char** arguments) {
  const std::uint64_t every = count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 251;
  for (const bool unusual : {false, true}) {
    if (unusual) {
      set_unusual_mode();
    }
    for (const Table* table : supported()) {
      check_values(*table, unusual ? every * 101 : every);
      check_lengths(*table);
      check_strides(*table);
      if (!unusual) check_products(*table);
      std::printf("%s%s: checked\n", table->name, unusual ? ", flushing denormals and rounding up" : "");
    }
  }
  std::printf("in use: %s; %d failures\n", path(), failures);
  return failures == 0 ? 0 : 1;
}

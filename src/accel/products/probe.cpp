#include "accel/products/probe.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "host/inside.hpp"
#include "tensor/cast.hpp"

namespace habana_mp::accel {

namespace {

struct Random {
  std::uint64_t state;
  std::uint64_t next() {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return state >> 33U;
  }
};

}  // namespace

void fill_with_noise(void* bf16_values, std::int64_t count, std::uint64_t seed) noexcept {
  auto* const values = static_cast<std::uint16_t*>(bf16_values);
  Random random{seed};
  // The values have any sign and fraction, and exponents from -8 to -1.
  for (std::int64_t i = 0; i < count; ++i) values[i] = static_cast<std::uint16_t>(0x3b80U + (random.next() & 0x83ffU));
}

void fill_with_cancelling_sums(void* bf16_values, std::int64_t rows, std::int64_t inner, bool reversed,
                               std::uint64_t seed, bool large_ends) {
  const std::int64_t rest = large_ends && has_large_ends(inner) ? inner % smallest_block : 0;
  auto* const first = static_cast<std::uint16_t*>(bf16_values);
  fill_with_noise(first, std::min(rows, different_rows) * inner, seed);
  // Both sides use the same order.
  const auto half = static_cast<std::size_t>((inner - rest) / 2);
  std::vector<std::size_t> order(half);
  std::iota(order.begin(), order.end(), std::size_t{0});
  Random random{half};
  for (std::size_t i = half; i > 1; --i) std::swap(order[i - 1], order[random.next() % i]);
  const unsigned flipped = reversed ? 0x8000 : 0;
  constexpr unsigned by_2_to_the_20th = 20U << 7U;
  for (std::int64_t i = 0; i < rows; ++i) {
    std::uint16_t* const row = first + i * inner;
    if (i >= different_rows) {
      std::memcpy(row, first + i % different_rows * inner, static_cast<std::size_t>(inner) * sizeof *row);
      continue;
    }
    for (std::size_t j = 0; j < half; ++j) row[half + j] = static_cast<std::uint16_t>(row[order[j]] ^ flipped);
    std::uint16_t* const end = row + inner - rest;
    for (std::int64_t j = 0; j < rest / 2; ++j) {
      if (reversed) end[j] = static_cast<std::uint16_t>(end[j] + by_2_to_the_20th);
      end[rest / 2 + j] = static_cast<std::uint16_t>(end[j] ^ flipped);
    }
    if (inner % 2 != 0) row[inner - 1] = 0;
  }
}

bool are_same(PyObject* one, PyObject* other) {
  host::Geometry a;
  host::Geometry b;
  if (one == nullptr || other == nullptr || !host::read_geometry(one, a) || !host::read_geometry(other, b)) {
    return false;
  }
  const auto bytes = static_cast<std::size_t>(tensor::bytes_as(Kind::bf16, host::count_elements(one)));
  return a.sizes == b.sizes && a.strides == b.strides && a.is_dense() && host::kind_of_tensor(one) == Kind::bf16 &&
         host::kind_of_tensor(other) == Kind::bf16 && std::memcmp(a.values, b.values, bytes) == 0;
}

}  // namespace habana_mp::accel

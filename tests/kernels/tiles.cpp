// Products by AMX's tiles, and those that give the same bits without, beside a plain loop. Where the processor has no
// tiles, or the operating system does not let us use them, each instruction for them raises a signal here, whose
// handler does what the instruction would: so the kernel runs as it was compiled. It is as strict as the processor.
//
// Compiled without Python and torch, by test_tiles.py.

#include <immintrin.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/product_table.hpp"

namespace {

using habana_mp::kernels::Order;
using habana_mp::kernels::panel_rows;
using habana_mp::kernels::PanelProduct;
using Bf16 = std::uint16_t;

[[noreturn]] void fail(const char* what, long detail = 0) {
  std::printf("%s (%ld)\n", what, detail);
  std::fflush(stdout);
  std::_Exit(1);
}

float float_of(Bf16 bits) {
  const std::uint32_t wide = std::uint32_t{bits} << 16U;
  float value = 0;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

// ---- the instructions
// ------------------------------------------------------------------------------------------------

struct Tile {
  std::size_t rows = 0;
  std::size_t bytes = 0;  // of a row
  alignas(64) unsigned char data[16][64] = {};

  [[nodiscard]] bool is_in_use() const { return rows != 0; }
};

struct {
  bool is_configured = false;
  std::array<Tile, 8> tiles;
  long executed = 0;
} machine;

Tile& tile(unsigned number) {
  if (number >= machine.tiles.size()) fail("no such tile", number);
  if (!machine.is_configured || !machine.tiles[number].is_in_use()) fail("a tile that is not configured", number);
  return machine.tiles[number];
}

void configure(const unsigned char* from) {
  if (from[0] != 1 || from[1] != 0) fail("a palette that is not there", from[0]);
  const auto is_reserved = [](std::size_t i) { return (i >= 2 && i < 16) || (i >= 32 && i < 48) || i >= 56; };
  for (std::size_t i = 0; i < 64; ++i) {
    if (is_reserved(i) && from[i] != 0) fail("a reserved byte of the configuration", static_cast<long>(i));
  }
  for (std::size_t i = 0; i < machine.tiles.size(); ++i) {
    std::uint16_t bytes = 0;
    std::memcpy(&bytes, from + 16 + 2 * i, sizeof bytes);
    const unsigned rows = from[48 + i];
    if (rows > 16 || bytes > 64 || (rows == 0) != (bytes == 0)) fail("the form of a tile", static_cast<long>(i));
    machine.tiles[i] = Tile{.rows = rows, .bytes = bytes};
  }
  machine.is_configured = true;
}

// Its arithmetic is the processor's, in the mode that the instruction prescribes.
[[gnu::noinline]] void add_products(Tile& sums, const Tile& a, const Tile& b) {
  const std::size_t columns = sums.bytes / 4;
  for (std::size_t m = 0; m < sums.rows; ++m) {
    float parts[32] = {};
    for (std::size_t k = 0; k < a.bytes / 4; ++k) {
      Bf16 left[2];
      std::memcpy(left, a.data[m] + 4 * k, sizeof left);
      for (std::size_t n = 0; n < columns; ++n) {
        Bf16 right[2];
        std::memcpy(right, b.data[k] + 4 * n, sizeof right);
        for (std::size_t i = 0; i < 2; ++i) {
          float& part = parts[2 * n + i];
          part = __builtin_fmaf(float_of(left[i]), float_of(right[i]), part);
        }
      }
    }
    for (std::size_t n = 0; n < columns; ++n) {
      float sum = 0;
      std::memcpy(&sum, sums.data[m] + 4 * n, sizeof sum);
      sum = sum + (parts[2 * n] + parts[2 * n + 1]);
      std::memcpy(sums.data[m] + 4 * n, &sum, sizeof sum);
    }
    std::memset(sums.data[m] + sums.bytes, 0, 64 - sums.bytes);
  }
  for (std::size_t m = sums.rows; m < 16; ++m) std::memset(sums.data[m], 0, 64);
}

void dot(unsigned sums, unsigned a, unsigned b) {
  if (sums == a || sums == b || a == b) fail("a tile that is two operands", sums);
  Tile& c = tile(sums);
  const Tile& left = tile(a);
  const Tile& right = tile(b);
  const bool fit = c.rows == left.rows && c.bytes == right.bytes && left.bytes == 4 * right.rows;
  if (!fit || c.bytes % 4 != 0 || left.bytes % 4 != 0) fail("tiles that do not fit together", sums);
  const unsigned before = _mm_getcsr();
  _mm_setcsr(0x9fc0);  // denormals are zero, both ways
  add_products(c, left, right);
  _mm_setcsr(before);
}

// An instruction with a VEX prefix of three bytes.
class Instruction {
 public:
  explicit Instruction(greg_t* registers)
      : registers_(registers), at_(reinterpret_cast<const unsigned char*>(registers[REG_RIP])) {
    constexpr unsigned map_0f38 = 2;
    if (at_[0] != 0xc4 || (at_[1] & 0x1fU) != map_0f38) fail("another instruction that is none here", at_[0]);
    if ((at_[2] & 0x84U) != 0) fail("W or L of a tile's instruction", at_[2]);
    mod_ = at_[4] >> 6U;
    reg_ = (at_[4] >> 3U & 7U) | extension(0x80);
    rm_ = at_[4] & 7U;
    find_operand();
  }

  void run() {
    const unsigned prefix = at_[2] & 3U;  // none, 66, F3, F2
    const unsigned what = at_[3] << 4U | prefix;
    const unsigned other = (~static_cast<unsigned>(at_[2]) >> 3U) & 15U;
    if (what != 0x5c2 && other != 0) fail("an operand too many", what);
    switch (what) {
      case 0x490:
        if (mod_ == 3) {
          if (at_[4] != 0xc0) fail("the form of tilerelease", at_[4]);
          machine.is_configured = false;
        } else {
          configure(address_);
        }
        break;
      case 0x493: {
        Tile& cleared = tile(reg_);
        if (mod_ != 3 || rm_ != 0) fail("the form of tilezero", at_[4]);
        std::memset(cleared.data, 0, sizeof cleared.data);
        break;
      }
      case 0x4b3:
      case 0x4b1: {
        Tile& loaded = tile(reg_);
        check_is_row_by_row();
        std::memset(loaded.data, 0, sizeof loaded.data);
        for (std::size_t i = 0; i < loaded.rows; ++i) std::memcpy(loaded.data[i], row(i), loaded.bytes);
        break;
      }
      case 0x4b2: {
        const Tile& stored = tile(reg_);
        check_is_row_by_row();
        for (std::size_t i = 0; i < stored.rows; ++i) std::memcpy(row(i), stored.data[i], stored.bytes);
        break;
      }
      case 0x5c2:
        if (mod_ != 3) fail("the form of tdpbf16ps", at_[4]);
        dot(reg_, rm_ | extension(0x20), other);
        break;
      default:
        fail("an instruction that is not known here", what);
    }
    registers_[REG_RIP] += static_cast<greg_t>(length_);
    ++machine.executed;
  }

 private:
  // Prefixes hold a register's fourth bit upside down.
  [[nodiscard]] unsigned extension(unsigned bit) const { return (at_[1] & bit) == 0 ? 8U : 0U; }

  [[nodiscard]] long value_of(unsigned number) const {
    constexpr int order[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                             REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    return registers_[order[number]];
  }

  void find_operand() {
    length_ = 5;
    if (mod_ == 3) return;
    const bool has_sib = rm_ == 4;
    unsigned base = rm_ | extension(0x20);
    if (has_sib) {
      const unsigned sib = at_[length_++];
      base = (sib & 7U) | extension(0x20);
      const unsigned index = (sib >> 3U & 7U) | extension(0x40);
      if (index != 4) step_ = value_of(index) << (sib >> 6U);
      is_row_by_row_ = true;
    }
    long displacement = 0;
    const bool no_base = mod_ == 0 && (base & 7U) == 5;
    if (mod_ == 1) {
      displacement = static_cast<signed char>(at_[length_++]);
    } else if (mod_ == 2 || no_base) {
      std::int32_t wide = 0;
      std::memcpy(&wide, at_ + length_, sizeof wide);
      displacement = wide;
      length_ += sizeof wide;
    }
    long begin = no_base ? 0 : value_of(base);
    if (no_base && !has_sib) begin = registers_[REG_RIP] + static_cast<long>(length_);
    address_ = reinterpret_cast<unsigned char*>(begin + displacement);
  }

  void check_is_row_by_row() const {
    if (mod_ == 3 || !is_row_by_row_) fail("a tile's memory without a step", at_[4]);
  }
  [[nodiscard]] unsigned char* row(std::size_t i) const { return address_ + static_cast<long>(i) * step_; }

  greg_t* registers_;
  const unsigned char* at_;
  unsigned mod_ = 0;
  unsigned reg_ = 0;
  unsigned rm_ = 0;
  std::size_t length_ = 0;
  unsigned char* address_ = nullptr;
  long step_ = 0;
  bool is_row_by_row_ = false;
};

void handle(int, siginfo_t*, void* context) { Instruction(static_cast<ucontext_t*>(context)->uc_mcontext.gregs).run(); }

bool are_tiles_in_use() {
  if (machine.executed != 0) return machine.is_configured;
  unsigned low = 0;
  unsigned high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(1));  // the states that are not as they were in the beginning
  return (low & (3U << 17U)) != 0;
}

// ---- the sums, plainly
// -----------------------------------------------------------------------------------------------

float without_denormal(float x) { return std::fabs(x) < FLT_MIN ? std::copysign(0.0F, x) : x; }

// To 24 binary digits, however small it is; then it is zero if float32 would hold it as a denormal. The sum of two
// float32, or of one and a product of two bfloat16, is rounded right although float64 may have rounded it before: where
// it did, the smaller of the two is far from the digits that decide.
float rounded(double x) {
  const auto plainly = static_cast<float>(x);
  if (!std::isfinite(x) || x == 0 || std::fabs(x) >= 2.0 * FLT_MIN) return plainly;
  int exponent = 0;
  const double digits = std::nearbyint(std::ldexp(std::frexp(x, &exponent), 24));
  return without_denormal(static_cast<float>(std::ldexp(digits, exponent - 24)));
}

struct Case {
  std::size_t rows;
  std::size_t outer;
  std::size_t inner;
  std::size_t block;
  bool has_bias;
  std::size_t gap;  // between the input's rows, and the result's
};

struct Values {
  std::vector<float> input;   // [rows][inner]
  std::vector<float> weight;  // [outer][inner]
  std::vector<float> bias;
};

float sum_of_block(const float* x, const float* w, std::size_t count) {
  float sum = 0;
  for (std::size_t begin = 0; begin < count; begin += 32) {
    float part[2] = {0, 0};
    for (std::size_t k = begin; k < std::min(begin + 32, count); ++k) {
      const double product = double{without_denormal(x[k])} * without_denormal(w[k]);
      part[k % 2] = rounded(product + part[k % 2]);
    }
    sum = rounded(double{sum} + rounded(double{part[0]} + part[1]));
  }
  return sum;
}

Bf16 bf16_of(float sum) {
  std::uint32_t bits = 0;
  sum = without_denormal(sum);
  std::memcpy(&bits, &sum, sizeof bits);
  if (std::isnan(sum)) return 0x7fc0;
  return static_cast<Bf16>((bits + 0x7fff + (bits >> 16U & 1U)) >> 16U);
}

std::vector<Bf16> by_hand(const Case& one, const Values& values) {
  std::vector<Bf16> result;
  for (std::size_t i = 0; i < one.rows; ++i) {
    for (std::size_t j = 0; j < one.outer; ++j) {
      const float* const x = values.input.data() + i * one.inner;
      const float* const w = values.weight.data() + j * one.inner;
      float sum = 0;
      for (std::size_t begin = 0; begin < one.inner; begin += one.block) {
        const float part = sum_of_block(x + begin, w + begin, std::min(one.block, one.inner - begin));
        sum = begin == 0 ? part : sum + part;
      }
      result.push_back(bf16_of(one.has_bias ? sum + values.bias[j] : sum));
    }
  }
  return result;
}

// ---- values and memory
// -----------------------------------------------------------------------------------------------

struct Random {
  std::uint64_t state;
  std::uint64_t next() {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return state >> 33U;
  }
  std::size_t up_to(std::size_t most) { return 1 + next() % most; }
};

enum class Kind : std::uint8_t { noise, sums_to_nothing, tiny, anything, count };

// bfloat16 of any sign and fraction, with so many exponents from the first on.
Bf16 noise(Random& random, unsigned first, unsigned exponents) {
  return static_cast<Bf16>((first + random.next() % exponents) << 7U | (random.next() & 0x807fU));
}

Bf16 value(Kind kind, Random& random) {
  constexpr Bf16 special[] = {0x0000, 0x8000, 0x0001, 0x8040, 0x007f, 0x7f7f, 0xff7f, 0x0080, 0x8080};
  if (kind == Kind::anything) {
    const std::uint64_t choice = random.next() % 400;
    if (choice == 0) return random.next() % 2 == 0 ? 0x7f80 : 0xff80;
    if (choice < 40) return special[random.next() % std::size(special)];
    return noise(random, 1, 253);
  }
  // The products of tiny ones are about as small as float32's smallest, some below.
  return kind == Kind::tiny ? noise(random, 54, 16) : noise(random, 119, 8);
}

void fill(Kind kind, std::size_t inner, bool reversed, Random& random, std::vector<float>& values) {
  for (float& one : values) one = float_of(value(kind, random));
  if (kind != Kind::sums_to_nothing) return;
  const std::size_t half = inner / 2;
  for (std::size_t row = 0; row < values.size(); row += inner) {
    for (std::size_t k = 0; k < half; ++k) {
      const float before = values[row + (k * 7 + 3) % half];
      values[row + half + k] = reversed ? -before : before;
    }
  }
}

// Memory between pages that nobody may touch: it begins with a page, or ends with one.
class Guarded {
 public:
  Guarded(std::size_t count, bool at_end) : bytes_(count * sizeof(Bf16)) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t usable = (bytes_ + page - 1) / page * page;
    size_ = usable + 2 * page;
    all_ = static_cast<char*>(mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (all_ == MAP_FAILED || mprotect(all_ + page, usable, PROT_READ | PROT_WRITE) != 0) fail("no memory");
    first_ = reinterpret_cast<Bf16*>(all_ + page + (at_end ? usable - bytes_ : 0));
  }
  ~Guarded() { munmap(all_, size_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  Bf16& operator[](std::size_t i) { return first_[i]; }
  Bf16* data() { return first_; }

 private:
  std::size_t bytes_;
  std::size_t size_ = 0;
  char* all_ = nullptr;
  Bf16* first_ = nullptr;
};

Bf16 bits_of(float x) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  return static_cast<Bf16>(bits >> 16U);
}

// What lies between two rows of the input must not be read, and of the result not be written.
constexpr Bf16 between = 0x7fc1;

void check(const Case& one, const Values& values, const std::vector<Bf16>& expected, bool by_tiles, bool at_end) {
  const std::size_t step = one.inner + one.gap;
  const std::size_t result_step = one.outer + one.gap;
  Guarded input((one.rows - 1) * step + one.inner, at_end);
  Guarded result((one.rows - 1) * result_step + one.outer, at_end);
  Guarded weight(one.outer * one.inner, at_end);
  Guarded bias(one.outer, at_end);
  std::fill_n(input.data(), (one.rows - 1) * step + one.inner, between);
  std::fill_n(result.data(), (one.rows - 1) * result_step + one.outer, between);
  for (std::size_t i = 0; i < one.rows * one.inner; ++i) {
    input[i / one.inner * step + i % one.inner] = bits_of(values.input[i]);
  }
  for (std::size_t j = 0; j < one.outer; ++j) bias[j] = bits_of(values.bias[j]);
  for (std::size_t first = 0; first < one.outer; first += panel_rows) {
    const std::size_t count = std::min(panel_rows, one.outer - first);
    Bf16* const panel = weight.data() + first * one.inner;
    for (std::size_t j = 0; j < count; ++j) {
      for (std::size_t k = 0; k < one.inner; ++k) {
        panel[(k / 2 * count + j) * 2 + k % 2] = bits_of(values.weight[(first + j) * one.inner + k]);
      }
    }
    const PanelProduct product{
        .input = input.data(),
        .input_step = step,
        .rows = one.rows,
        .inner = one.inner,
        .sums = {by_tiles ? Order::tiles : Order::tiles_by_fma, one.block},
        .panel = panel,
        .outer = count,
        .bias = one.has_bias ? bias.data() + first : nullptr,
        .result = result.data() + first,
        .result_step = result_step,
    };
    constexpr unsigned control = 0xffc0;
    const unsigned before = _mm_getcsr() & control;
    by_tiles ? multiply_by_tiles(product) : multiply_as_tiles(product);
    if ((_mm_getcsr() & control) != before) fail("the mode of rounding is another one");
    if (by_tiles && are_tiles_in_use()) fail("the tiles were not given back");
  }
  for (std::size_t i = 0; i + 1 < one.rows; ++i) {
    for (std::size_t j = one.outer; j < result_step; ++j) {
      if (result[i * result_step + j] != between) fail("written between the result's rows", static_cast<long>(i));
    }
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const Bf16 made = result[i / one.outer * result_step + i % one.outer];
    if (made == expected[i] || (std::isnan(float_of(made)) && std::isnan(float_of(expected[i])))) continue;
    std::printf("%s: rows %zu, outer %zu, inner %zu, block %zu, bias %d, gap %zu: at %zu %04x instead of %04x\n",
                by_tiles ? "tiles" : "FMA", one.rows, one.outer, one.inner, one.block, one.has_bias, one.gap, i, made,
                expected[i]);
    fail("other bits");
  }
}

void try_case(const Case& one, std::uint64_t seed) {
  Random random{seed * 77 + 5};
  random.next();
  const auto kind = static_cast<Kind>(seed % static_cast<std::uint64_t>(Kind::count));
  Values values{std::vector<float>(one.rows * one.inner), std::vector<float>(one.outer * one.inner),
                std::vector<float>(one.outer)};
  fill(kind, one.inner, true, random, values.input);
  fill(kind, one.inner, false, random, values.weight);
  // As small as what rounding leaves, or as the sums.
  for (float& bias : values.bias) {
    bias = kind == Kind::tiny ? float_of(noise(random, 0, 3)) : float_of(noise(random, 100, 20));
  }
  const std::vector<Bf16> expected = by_hand(one, values);
  const bool at_end = seed % 3 != 0;
  check(one, values, expected, true, at_end);
  check(one, values, expected, false, at_end);
}

}  // namespace

int main() {
  struct sigaction action = {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGILL, &action, nullptr);
  constexpr int request_permission = 0x1023;
  constexpr int tile_data = 18;
  syscall(SYS_arch_prctl, request_permission, tile_data);

  std::uint64_t seed = 0;
  for (const std::size_t rows : {1, 7, 8, 16, 17, 32, 33}) {
    for (const std::size_t outer : {1, 15, 16, 17, 31, 32, 33, 48, 63, 64}) {
      for (const std::size_t inner : {2, 30, 32, 34, 64, 66}) {
        ++seed;
        try_case({rows, outer, inner, seed % 5 == 0 ? 16 : inner, seed % 2 == 0, seed % 4}, seed);
      }
    }
  }
  Random random{1};
  constexpr std::size_t blocks[] = {2, 32, 34, 64, 96, 256};
  for (int i = 0; i < 160; ++i) {
    ++seed;
    const std::size_t inner = 2 * random.up_to(150);
    const std::size_t block = random.next() % 2 == 0 ? inner : blocks[random.next() % std::size(blocks)];
    try_case({random.up_to(70), random.up_to(140), inner, block, random.next() % 2 == 0, random.next() % 20}, seed);
  }
  std::printf("%llu cases, %s\n", static_cast<unsigned long long>(seed),
              machine.executed != 0 ? "tiles emulated" : "tiles of the processor");
  return 0;
}

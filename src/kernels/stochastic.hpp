// Stochastic rounding from float32 to bfloat16: up or down; the nearer value is more likely. In an anonymous namespace
// because each instruction set's file compiles its own copy. The compiler vectorizes the loops over lanes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace habana_mp::kernels {
namespace {  // NOLINT(google-build-namespaces): see above

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"), for 32 successive counters at once.
// With fewer, GCC would unroll the loops before it vectorizes them. The four words of a counter round eight elements
// that are 32 apart: element e of a chunk uses the lower or upper half of a word in lane e % 32.
constexpr std::size_t lanes = 32;
constexpr std::size_t chunk = 8 * lanes;

struct Words {
  std::uint32_t word[4][lanes];
};

inline void philox(std::uint64_t first_counter, std::uint64_t seed, Words& words) {
  auto& [a, b, c, d] = words.word;
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    a[lane] = static_cast<std::uint32_t>(first_counter + lane);
    b[lane] = static_cast<std::uint32_t>((first_counter + lane) >> 32);
    c[lane] = 0;
    d[lane] = 0;
  }
  auto key = static_cast<std::uint32_t>(seed);
  auto other_key = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      const std::uint64_t first = std::uint64_t{0xd2511f53U} * a[lane];
      const std::uint64_t second = std::uint64_t{0xcd9e8d57U} * c[lane];
      a[lane] = static_cast<std::uint32_t>(second >> 32) ^ b[lane] ^ key;
      b[lane] = static_cast<std::uint32_t>(second);
      c[lane] = static_cast<std::uint32_t>(first >> 32) ^ d[lane] ^ other_key;
      d[lane] = static_cast<std::uint32_t>(first);
    }
    key += 0x9e3779b9U;
    other_key += 0xbb67ae85U;
  }
}

// Adds a random number smaller than one step of bfloat16. The larger the bits that are dropped, the more often the sum
// carries into the bits that stay. The dropped bits are zero for infinities and for all values that bfloat16 can
// represent.
inline void round_chunk(const std::uint32_t* in, const Words& words, std::uint16_t* out) {
  for (std::size_t part = 0; part < chunk / lanes; ++part) {
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      const std::uint32_t x = in[part * lanes + lane];
      const std::uint32_t random = words.word[part / 2][lane] >> part % 2 * 16 & 0xffffU;
      const bool nan = (x & 0x7fffffffU) > 0x7f800000U;
      out[part * lanes + lane] = static_cast<std::uint16_t>((nan ? 0x7fc00000U : x + random) >> 16);
    }
  }
}

inline void round_stochastically(const void* source, void* target, std::size_t count, std::uint64_t seed,
                                 std::uint64_t first) noexcept {
  const auto* from = static_cast<const unsigned char*>(source);
  auto* to = static_cast<unsigned char*>(target);
  for (std::size_t done = 0; done < count; done += chunk) {
    const std::size_t now = count - done < chunk ? count - done : chunk;
    alignas(64) std::uint32_t in[chunk];
    alignas(64) std::uint16_t out[chunk];
    Words words;
    __builtin_memcpy(in, from + done * sizeof *in, now * sizeof *in);
    philox((first + done) / chunk * lanes, seed, words);
    round_chunk(in, words, out);
    __builtin_memcpy(to + done * sizeof *out, out, now * sizeof *out);
  }
}

}  // namespace
}  // namespace habana_mp::kernels

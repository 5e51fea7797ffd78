#include <immintrin.h>

#include "kernels/product_fma.hpp"

namespace habana_mp::kernels {
namespace {

struct Avx2 {
  using Floats = __m256;
  using Words = __m256i;
  static constexpr std::size_t lanes = 8;
  static constexpr std::size_t most_sums = 12;  // of 16 registers
  static constexpr std::size_t few_rows = 4;

  static Floats zero() { return _mm256_setzero_ps(); }
  static Floats load(const float* from) { return _mm256_loadu_ps(from); }
  static void store(float* to, Floats value) { _mm256_storeu_ps(to, value); }
  static Floats in_all_lanes(float one) { return _mm256_set1_ps(one); }
  static Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
  static Floats add_product(Floats a, Floats b, Floats sum) { return _mm256_fmadd_ps(a, b, sum); }
  static Words load_words(const std::uint16_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }

  // In three rounds, which exchange neighbours, pairs and halves of two rows.
  static void transpose(Words (&rows)[lanes]) {
    Words next[lanes];
#pragma GCC unroll 4
    for (std::size_t i = 0; i < lanes; i += 2) {
      next[i] = _mm256_unpacklo_epi32(rows[i], rows[i + 1]);
      next[i + 1] = _mm256_unpackhi_epi32(rows[i], rows[i + 1]);
    }
#pragma GCC unroll 2
    for (std::size_t i = 0; i < lanes; i += 4) {
      rows[i] = _mm256_unpacklo_epi64(next[i], next[i + 2]);
      rows[i + 1] = _mm256_unpackhi_epi64(next[i], next[i + 2]);
      rows[i + 2] = _mm256_unpacklo_epi64(next[i + 1], next[i + 3]);
      rows[i + 3] = _mm256_unpackhi_epi64(next[i + 1], next[i + 3]);
    }
#pragma GCC unroll 4
    for (std::size_t i = 0; i < lanes / 2; ++i) {
      next[i] = _mm256_permute2x128_si256(rows[i], rows[i + 4], 0x20);
      next[i + 4] = _mm256_permute2x128_si256(rows[i], rows[i + 4], 0x31);
    }
    __builtin_memcpy(rows, next, sizeof rows);
  }

  static __m128i load_half(const std::uint16_t* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  }

  struct Bf16 {
    static Floats even(Words pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
    static Floats odd(Words pairs) {
      return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000U))));
    }
    static Floats load(const std::uint16_t* from) { return even(_mm256_cvtepu16_epi32(load_half(from))); }
  };
  struct F16 {
    static Floats even(Words pairs) { return odd(_mm256_slli_epi32(pairs, 16)); }
    static Floats odd(Words pairs) {
      // Packs the upper halves of all lanes.
      const Words upper = _mm256_srli_epi32(pairs, 16);
      const Words packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(upper, upper), 0x08);
      return _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
    }
    static Floats load(const std::uint16_t* from) { return _mm256_cvtph_ps(load_half(from)); }
  };
};

}  // namespace

constinit const FusedKernels avx2_fused = fused_kernels_of<Avx2>();

}  // namespace habana_mp::kernels

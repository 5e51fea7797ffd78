#include "kernels/avx512.hpp"
#include "kernels/product_fma.hpp"
#include "kernels/squares.hpp"

namespace habana_mp::kernels {
namespace {

struct Avx512 {
  using Floats = __m512;
  using Words = __m512i;
  static constexpr std::size_t lanes = 16;
  static constexpr std::size_t most_sums = 24;  // of 32 registers
  static constexpr std::size_t few_rows = 8;

  static Floats zero() { return _mm512_setzero_ps(); }
  static Floats load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, Floats value) { _mm512_storeu_ps(to, value); }
  static Floats in_all_lanes(float one) { return _mm512_set1_ps(one); }
  static Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  static Floats add_product(Floats a, Floats b, Floats sum) { return _mm512_fmadd_ps(a, b, sum); }
  static Words load_words(const std::uint16_t* from) { return _mm512_loadu_si512(from); }
  static void transpose(Words (&square)[lanes]) { transpose_square(square); }

  struct Bf16 {
    static Floats even(Words pairs) { return even_of(pairs); }
    static Floats odd(Words pairs) { return odd_of(pairs); }
    static Floats load(const std::uint16_t* from) {
      return _mm512_castsi512_ps(f32_bits_of_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
    }
  };
  struct F16 {
    static Floats even(Words pairs) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(pairs)); }
    static Floats odd(Words pairs) { return even(_mm512_srli_epi32(pairs, 16)); }
    static Floats load(const std::uint16_t* from) {
      return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    }
  };
};

}  // namespace

constinit const FusedKernels avx512_fused = fused_kernels_of<Avx512>();

}  // namespace habana_mp::kernels

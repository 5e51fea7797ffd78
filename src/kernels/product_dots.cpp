// Sums in the order of torch's own loop, which torch uses when its library is not worth calling: the dot product of two
// rows in eight lanes. The products here are small: avoiding a call of torch is what saves time.
#include "kernels/avx512.hpp"
#include "kernels/product_table.hpp"

namespace habana_mp::kernels {
namespace {

constexpr std::size_t lanes = 16;         // of a register: columns of the panel
constexpr std::size_t dot_lanes = 8;      // of torch's loop
constexpr std::size_t pairs_of_all = 32;  // in the eight registers of torch's loop, of eight lanes each
constexpr std::size_t pairs_of_group = 8;

// A row of the input, and up to 16 columns of the panel.
struct Dots {
  const std::uint16_t* input;
  const std::uint16_t* panel;
  std::size_t pair_step;
  __mmask16 there;

  // Adds the two products of a pair, each to its own sum, or one after the other if both are the same sum.
  void add_pair(std::size_t pair, __m512& even, __m512& odd) const {
    const __m512i values = _mm512_maskz_loadu_epi32(there, panel + pair * pair_step);
    even = _mm512_fmadd_ps(input_at(pair * 2), even_of(values), even);
    odd = _mm512_fmadd_ps(input_at(pair * 2 + 1), odd_of(values), odd);
  }

 private:
  [[nodiscard]] __m512 input_at(std::size_t at) const { return f32_in_all_lanes(input[at]); }
};

// Adds the second half of the sums to the first half until one sum is left.
template <std::size_t count>
inline __m512 folded(__m512 (&sums)[count]) {
  for (std::size_t half = count / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) sums[i] = _mm512_add_ps(sums[i], sums[half + i]);
  }
  return sums[0];
}

template <std::size_t count>
inline void clear(__m512 (&sums)[count]) {
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
}

// Sums pairs in blocks that fill all registers of torch's loop.
__m512 sum_of_all(const Dots& dots, std::size_t pairs) {
  __m512 sums[2 * pairs_of_all];
  clear(sums);
  for (std::size_t begin = 0; begin < pairs; begin += pairs_of_all) {
    for (std::size_t i = 0; i < pairs_of_all; ++i) dots.add_pair(begin + i, sums[2 * i], sums[2 * i + 1]);
  }
  return folded(sums);
}

// Sums pairs in groups that fill two registers of torch's loop.
inline __m512 sum_of_groups(const Dots& dots, std::size_t begin, std::size_t end) {
  __m512 sums[dot_lanes];
  clear(sums);
  for (; begin < end; begin += pairs_of_group) {
#pragma GCC unroll 8
    for (std::size_t i = 0; i < pairs_of_group; ++i) {
      dots.add_pair(begin + i, sums[2 * i % dot_lanes], sums[2 * i % dot_lanes + 1]);
    }
  }
  return folded(sums);
}

inline __m512 dot(const Dots& dots, std::size_t pairs) {
  const std::size_t all = pairs / pairs_of_all * pairs_of_all;
  const std::size_t grouped = pairs / pairs_of_group * pairs_of_group;
  __m512 sum = all == 0 ? _mm512_setzero_ps() : sum_of_all(dots, all);
  sum = _mm512_add_ps(sum, sum_of_groups(dots, all, grouped));
  for (std::size_t pair = grouped; pair < pairs; ++pair) dots.add_pair(pair, sum, sum);
  return sum;
}

}  // namespace

// Unlike the processor's instruction for pairs, this loop and torch's rounding preserve denormals.
void multiply_by_dots(const PanelProduct& product) noexcept {
  for (std::size_t column = 0; column < product.columns; column += lanes) {
    const __mmask16 there = lanes32(product.columns - column);
    const bool has_bias = product.column_bias != nullptr;
    const __m256i bias =
        has_bias ? _mm256_maskz_loadu_epi16(there, product.column_bias + column) : _mm256_setzero_si256();
    for (std::size_t row = 0; row < product.row_count; ++row) {
      const Dots dots{
          .input = product.rows + row * product.row_step,
          .panel = product.panel + column * 2,
          .pair_step = product.columns * 2,
          .there = there,
      };
      __m512 sum = dot(dots, product.inner / 2);
      if (has_bias) sum = _mm512_add_ps(sum, _mm512_castsi512_ps(f32_bits_of_bf16(bias)));
      const __m512i rounded = bf16_by_integers(_mm512_castps_si512(sum), _mm512_setzero_si512());
      std::uint16_t* const to = product.result + row * product.result_step + column;
      _mm256_mask_storeu_epi16(to, there, _mm512_castsi512_si256(rounded));
    }
  }
}

}  // namespace habana_mp::kernels

// Code shared by the two files that sum in the order of AMX's tiles. Each file compiles its own copy with its own
// flags.
#pragma once

#include "kernels/avx512.hpp"
#include "kernels/product_table.hpp"

namespace habana_mp::kernels {
namespace {  // NOLINT(google-build-namespaces): see above

constexpr std::size_t lanes = 16;
constexpr std::size_t pairs_of_tile = 16;
constexpr std::size_t line = 32;  // a cache line, in bfloat16 elements
// With few rows, reading a weight is limited by memory bandwidth, so it is prefetched this many bfloat16 elements
// ahead. Measured for products in pairs, not for these.
constexpr std::size_t soon = std::size_t{1} << 13;

// A block of rows and columns of the result, and its sums in memory.
struct Patch {
  std::size_t row;
  std::size_t rows;
  std::size_t column;
  std::size_t columns;
  float* sums;
  std::size_t sums_step;  // elements from row to row

  [[nodiscard]] __mmask16 there(std::size_t at) const { return lanes32(columns - at); }
};

// Adds the sums of one more block, which have the same layout as the patch's sums.
inline void add_block(const Patch& patch, const float* block) {
  for (std::size_t i = 0; i < patch.rows; ++i) {
    for (std::size_t j = 0; j < patch.columns; j += lanes) {
      const __mmask16 there = patch.there(j);
      float* const sums = patch.sums + i * patch.sums_step + j;
      const __m512 more = _mm512_maskz_loadu_ps(there, block + i * patch.sums_step + j);
      _mm512_mask_storeu_ps(sums, there, _mm512_add_ps(_mm512_maskz_loadu_ps(there, sums), more));
    }
  }
}

// Adds the bias, rounds to bfloat16 and writes the result.
inline void finish(const PanelProduct& product, const Patch& patch) {
  for (std::size_t j = 0; j < patch.columns; j += lanes) {
    const __mmask16 there = patch.there(j);
    const std::size_t column = patch.column + j;
    __m512 bias = _mm512_setzero_ps();
    if (product.bias != nullptr) {
      bias = _mm512_castsi512_ps(f32_bits_of_bf16(_mm256_maskz_loadu_epi16(there, product.bias + column)));
    }
    for (std::size_t i = 0; i < patch.rows; ++i) {
      __m512 sum = _mm512_maskz_loadu_ps(there, patch.sums + i * patch.sums_step + j);
      if (product.bias != nullptr) sum = _mm512_add_ps(sum, bias);
      std::uint16_t* const to = product.result + (patch.row + i) * product.result_step + column;
      _mm256_mask_storeu_epi16(to, there, (__m256i)_mm512_cvtneps_pbh(sum));
    }
  }
}

}  // namespace
}  // namespace habana_mp::kernels

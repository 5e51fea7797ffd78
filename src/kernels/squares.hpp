// Transposes squares of 32-bit numbers in the registers of AVX-512. Each file compiles its own copy with its own flags.
#pragma once

#include "kernels/avx512.hpp"

namespace habana_mp::kernels {
namespace {  // NOLINT(google-build-namespaces): see above

// Transposes 16 rows of 16 numbers in four rounds. Each round exchanges halves, quarters, pairs and neighbours between
// two rows.
inline void transpose_square(__m512i (&rows)[16]) {
  constexpr std::size_t lanes = 16;
  __m512i next[lanes];
#pragma GCC unroll 8
  for (std::size_t i = 0; i < lanes; i += 2) {
    next[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    next[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
#pragma GCC unroll 4
  for (std::size_t i = 0; i < lanes; i += 4) {
    rows[i] = _mm512_unpacklo_epi64(next[i], next[i + 2]);
    rows[i + 1] = _mm512_unpackhi_epi64(next[i], next[i + 2]);
    rows[i + 2] = _mm512_unpacklo_epi64(next[i + 1], next[i + 3]);
    rows[i + 3] = _mm512_unpackhi_epi64(next[i + 1], next[i + 3]);
  }
  // Row i now has four numbers of each column i, i + 4, i + 8 and i + 12 of its group of four rows.
#pragma GCC unroll 4
  for (std::size_t i = 0; i < 4; ++i) {
    const __m512i first = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0x88);
    const __m512i second = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0xdd);
    const __m512i third = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0x88);
    const __m512i fourth = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0xdd);
    next[i] = _mm512_shuffle_i32x4(first, third, 0x88);
    next[i + 4] = _mm512_shuffle_i32x4(second, fourth, 0x88);
    next[i + 8] = _mm512_shuffle_i32x4(first, third, 0xdd);
    next[i + 12] = _mm512_shuffle_i32x4(second, fourth, 0xdd);
  }
  __builtin_memcpy(rows, next, sizeof rows);
}

}  // namespace
}  // namespace habana_mp::kernels

// Helpers that find out whether two ways to compute a result give the same bits. Only for this directory.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>

namespace habana_mp::accel {

// Fills an array with values of both signs and many magnitudes. Float32 rounds the sums of their products, so these
// depend on the order.
void fill_with_noise(void* bf16_values, std::int64_t count, std::uint64_t seed) noexcept;

// Fills one side of a product, [rows][inner], in the same way. In the product of an input that is `reversed` and a
// weight that is not, the second half of each sum cancels the first half, in another order. Only rounding errors
// remain, so the results show the order of the sums. A value without a partner is zero. With `large_ends`, the end of a
// row that does not fill a block of `smallest_block` cancels by itself. Its values are so large that the result depends
// on whether the sum before them was already added, and hardly on the order before that.
void fill_with_cancelling_sums(void* bf16_values, std::int64_t rows, std::int64_t inner, bool reversed,
                               std::uint64_t seed, bool large_ends);
inline constexpr std::int64_t smallest_block = 256;

// True if rows of this length have large ends.
inline bool has_large_ends(std::int64_t inner) noexcept {
  return inner > smallest_block && inner % smallest_block != 0;
}

// This many rows differ from each other; the others are copies.
inline constexpr std::int64_t different_rows = 61;

// True if two bfloat16 tensors have the same layout and the same bits. False if either is null.
bool are_same(PyObject* one, PyObject* other);

}  // namespace habana_mp::accel

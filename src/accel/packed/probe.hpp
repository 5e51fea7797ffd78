// Finding out whether two ways to the same result give the same bits. For this room only.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>

namespace habana_mp::accel {

// Values of both signs and of many sizes: float32 rounds the sums of their products, so these depend on their order.
void fill_with_noise(void* bf16_values, std::int64_t count, std::uint64_t seed) noexcept;

// The same for one of the sides of a product, [rows][inner]. In the product of an input that is `reversed` and a weight
// that is not, the second half of each sum takes back what the first has brought, in another order. What is left is
// what rounding left, so that the results tell the order of the sums; a value without a partner is zero. What is left
// over of a row by `smallest_block` adds up to nothing for itself, and is so large on the way that the sum before it
// shows whether it was there.
void fill_with_sums_to_nothing(void* bf16_values, std::int64_t rows, std::int64_t inner, bool reversed,
                               std::uint64_t seed);
inline constexpr std::int64_t smallest_block = 256;
// So many rows differ from each other, the others are copies.
inline constexpr std::int64_t different_rows = 61;

// Do two tensors of bfloat16 lie in the same way and hold the same bits? Either may be null: then no.
bool are_same(PyObject* one, PyObject* other);

}  // namespace habana_mp::accel

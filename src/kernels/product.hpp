// Products of activations and the weight of a linear layer, which is read as it is stored in memory. Pure C++: no
// Python, no torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/types.hpp"

namespace habana_mp::kernels {

struct Table;

// result[i][j] = the sum over k of input[i][k] * weight[j][k], plus bias[j]. All values are of one kind, bfloat16 or
// float16. The sums are float32, rounded once at the end; or the result is these sums, and the bias is float32.
//
// The order of the sums depends on the kind, the length of a row and the instruction set. The number of threads, and
// the other rows and columns, do not change a result's bits.
// - In float32, for both kinds and on every processor: of each 512 numbers of a row, the products at even positions are
//   summed one after the other, each by a fused multiply-add, and so are those at odd positions. To the sum so far,
//   which begins with zero, the first of these sums is added, and then the second one.
// - In pairs, by the instruction vdpbf16ps, if the length of a row is even: of each 256 numbers of a row, the products
//   are summed one after the other, the second one of each pair before the first one. These sums are added one after
//   the other. Denormal numbers count as zero.
// - By AMX's tiles, for 16 rows and more, unless the weight is [inner][outer]: in each 32 products, those at even and
//   those at odd positions are summed separately, in this order, each by a fused multiply-add. The two sums are added,
//   and the result is added to the sum of the products before. Denormal numbers count as zero.
// The bias is added to the sum.
inline constexpr std::size_t sum_block = 256;  // products that are summed one after the other

struct Product {
  Float kind;
  const void* input;
  std::size_t input_step;  // elements from row to row
  std::size_t rows;
  std::size_t inner;
  const void* weight;
  std::size_t weight_step;  // elements from row to row
  bool inner_first;         // the weight is [inner][outer], not [outer][inner]
  std::size_t outer;
  const void* bias;         // may be null
  bool float32_result;      // the bias is in float32 too
  void* result;             // overlaps no other array
  std::size_t result_step;  // elements from row to row
};

// True if the instruction set has kernels for products. Otherwise `multiply` must not be called.
bool can_multiply() noexcept;

// True if this processor has instructions that multiply bfloat16, and the instruction set in use has them.
bool multiplies_bfloat16() noexcept;

// Returns the largest number of rows for which these kernels are as fast as another library that uses all instructions
// of the processor.
std::size_t most_rows(Float kind) noexcept;

// Uses at most `threads` threads; small products are computed on the calling thread alone. Thread-safe, safe after
// fork, never throws. Returns false if there is no memory for a copy of the input or of a part of the weight.
bool multiply(const Product& product, unsigned threads) noexcept;
// The same with the kernels of a given instruction set, which must have some.
bool multiply_with(const Table& table, const Product& product, unsigned threads) noexcept;
// Computes products of equal sizes, each as `multiply` does.
bool multiply_each(std::span<const Product> products, unsigned threads) noexcept;

}  // namespace habana_mp::kernels

// Products of bfloat16 activations and the weight of a linear layer: pure C++, no Python, no torch.
#pragma once

#include <cstddef>

namespace habana_mp::kernels {

// As a block: 16 sums, each of every 16th pair of products, which are added in the end, the first eight and the others,
// the first four and the others, neighbours, and both.
inline constexpr std::size_t by_lanes = 0;

// result[i][j] = the sum over k of input[i][k] * weight[j][k], plus bias[j]. Everything is bfloat16, the sums are
// float32. They are made in order: `block` products one pair after the other, then the sum of the next so many is added
// to those before; or `by_lanes`. Which block gives the bits of another library is for the caller to find out.
struct Product {
  const void* input;
  std::size_t input_step;  // elements from row to row
  std::size_t rows;
  std::size_t inner;   // an even number
  std::size_t block;   // an even number too, or by_lanes
  const void* weight;  // as `arrange` has brought it
  std::size_t outer;
  const void* bias;  // null for none
  void* result;      // contiguous; overlaps nothing else
};

// Are there such kernels for this processor? Without them nothing else here may be called.
bool can_multiply() noexcept;

// Brings a contiguous weight [outer][inner], or [inner][outer] if it is `inner_first`, into the order in which the
// product reads it. The same size, to memory that does not overlap it.
void arrange(const void* weight, std::size_t outer, std::size_t inner, bool inner_first, void* arranged,
             unsigned threads) noexcept;

// On `threads` threads at most; small products stay on the calling one. The bits are the same on any number of them.
// Thread-safe, safe after fork, never throws.
void multiply(const Product& product, unsigned threads) noexcept;

}  // namespace habana_mp::kernels

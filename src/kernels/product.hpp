// Products of bfloat16 activations and the weight of a linear layer: pure C++, no Python, no torch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace habana_mp::kernels {

// In which order the products of a sum are added up.
enum class Order : std::uint8_t {
  pairs,  // one pair after the other, as the instruction vdpbf16ps does
  // 16 sums, each of every 16th pair, which are added in the end, the first eight and the others, the first four and
  // the others, neighbours, and both.
  lanes,
  // Of 32 products those in even and those in odd places apart, each product rounded together with the sum before it;
  // both are added, then that is added to the 32 before. So AMX's tiles do it.
  tiles,
  tiles_by_fma,  // the same sums, made without tiles
  // As torch's own loop for small products: 64 sums, each of every 64th product; then eight, of what is left in groups
  // of 16 each of every eighth; each folded by halves, and both added; then what is left one after the other. Each
  // product is rounded together with the sum before it. Denormals count here.
  dots,
};

// How a sum is made: `block` products in that order, then the sum of the next so many is added to those before. Of
// `lanes` and `dots` the block says nothing.
struct Sums {
  Order order;
  std::size_t block;  // an even number
};

// result[i][j] = the sum over k of input[i][k] * weight[j][k], plus bias[j]. Everything is bfloat16, the sums are
// float32. Which sums give the bits of another library is for the caller to find out.
struct Product {
  const void* input;
  std::size_t input_step;  // elements from row to row
  std::size_t rows;
  std::size_t inner;  // an even number
  Sums sums;
  const void* weight;  // as `arrange` has brought it
  std::size_t outer;
  const void* bias;  // null for none
  void* result;      // contiguous; overlaps nothing else
};

// Are there such kernels for this processor? Without them nothing else here may be called.
bool can_multiply() noexcept;

// Can they sum in this order? The first question for tiles asks the operating system for the leave to use them: from
// then on it refuses this process small stacks for signals, so ask only where tiles are wanted.
bool can_sum(Order order) noexcept;

// Has this processor tiles, so that another library may sum as they do?
bool has_tiles() noexcept;

// Brings a contiguous weight [outer][inner], or [inner][outer] if it is `inner_first`, into the order in which the
// product reads it. The same size, to memory that does not overlap it.
void arrange(const void* weight, std::size_t outer, std::size_t inner, bool inner_first, void* arranged,
             unsigned threads) noexcept;

// On `threads` threads at most; small products stay on the calling one. The bits are the same on any number of them.
// Thread-safe, safe after fork, never throws.
void multiply(const Product& product, unsigned threads) noexcept;

}  // namespace habana_mp::kernels

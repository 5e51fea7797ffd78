// Products of bfloat16 activations and the weight of a linear layer, which is read as it is stored in memory. Pure C++:
// no Python, no torch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace habana_mp::kernels {

// The order in which the products of a sum are added up.
enum class Order : std::uint8_t {
  pairs,  // one pair after the other, like the instruction vdpbf16ps
  // 16 sums, each of every 16th pair. In the end they are added in halves: the last eight to the first eight, the last
  // four to the first four, then neighbours, then the remaining two.
  lanes,
  // As AMX's tiles do it. In each block of 32 products, those at even and those at odd positions are summed separately,
  // each product with a fused multiply-add. The two sums are added, and the result is added to the sum of the products
  // before.
  tiles,
  // As in torch's own loop for small products. First 64 sums, each of every 64th product. Then eight sums of the rest
  // in groups of 16, each of every eighth product. Both sets are folded by halves and added. Then the remaining
  // products are added one after the other. Each product uses a fused multiply-add. Denormals are preserved here.
  dots,
};

// A sum adds `block` products in this order; then the sum of the next `block` products is added to those before.
// `lanes` and `dots` ignore `block`.
struct Sums {
  Order order;
  std::size_t block;  // an even number
};

// result[i][j] = the sum over k of input[i][k] * weight[j][k], plus bias[j]. All values are bfloat16; the sums are
// float32. The caller chooses the sums that give the same bits as another library.
struct Product {
  const void* input;
  std::size_t input_step;  // elements from row to row
  std::size_t rows;
  std::size_t inner;  // an even number
  Sums sums;
  const void* weight;
  std::size_t weight_step;  // elements from row to row
  bool inner_first;         // the weight is [inner][outer], not [outer][inner]
  std::size_t outer;
  const void* bias;         // may be null
  void* result;             // overlaps no other array
  std::size_t result_step;  // elements from row to row
};

// True if this processor has kernels for products. Otherwise `multiply` must not be called.
bool can_multiply() noexcept;

// True if the kernels can sum in this order. The first call for tiles requests permission to use them from the
// operating system, which from then on refuses small signal stacks to this process. So call it only if tiles are
// wanted.
bool can_sum(Order order) noexcept;

// True if this processor has tiles, so that another library may use them for its sums.
bool has_tiles() noexcept;

// Uses at most `threads` threads; small products are computed on the calling thread alone. The number of threads does
// not change the bits. Thread-safe, safe after fork, never throws. Returns false if there is no memory for a copy of
// the input or of a part of the weight.
bool multiply(const Product& product, unsigned threads) noexcept;

}  // namespace habana_mp::kernels

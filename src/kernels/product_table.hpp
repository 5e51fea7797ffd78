// The kernels of one instruction set for products with a weight. No inline functions, for the reason given in
// table.hpp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/product.hpp"

namespace habana_mp::kernels {

// The rows of a weight are grouped into panels of this many rows; the last panel may have fewer.
inline constexpr std::size_t panel_rows = 64;

// The product of an input and one panel of the weight. All values are bfloat16; steps are in elements.
struct PanelProduct {
  const std::uint16_t* input;
  std::size_t input_step;  // from row to row
  std::size_t rows;        // of the input
  std::size_t inner;       // the length of a row
  Sums sums;
  const std::uint16_t* panel;
  std::size_t outer;          // rows of the panel
  const std::uint16_t* bias;  // may be null
  std::uint16_t* result;
  std::size_t result_step;
};

struct ProductKernels {
  // Copies `outer` rows of a weight in a panel's order: the first two values of every row, then the next two, and so
  // on.
  void (*arrange)(const std::uint16_t* rows, std::size_t inner, std::size_t outer, std::uint16_t* panel) noexcept;
  void (*multiply)(const PanelProduct& product) noexcept;           // in pairs or in lanes
  void (*multiply_by_tiles)(const PanelProduct& product) noexcept;  // null without tiles
  void (*multiply_as_tiles)(const PanelProduct& product) noexcept;  // the same bits with other instructions
  void (*multiply_by_dots)(const PanelProduct& product) noexcept;
};

extern const ProductKernels avx512_bf16_products;
extern const ProductKernels amx_products;

// The process must have permission to use tiles. No tiles are in use afterwards.
void multiply_by_tiles(const PanelProduct& product) noexcept;
// Intended for few rows.
void multiply_as_tiles(const PanelProduct& product) noexcept;
// Intended for small products.
void multiply_by_dots(const PanelProduct& product) noexcept;

}  // namespace habana_mp::kernels

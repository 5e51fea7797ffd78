// What one instruction set offers for products with a weight. As table.hpp: no inline functions in here.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/product.hpp"

namespace habana_mp::kernels {

// A weight's rows are taken together in panels of so many; the last panel may have fewer.
inline constexpr std::size_t panel_rows = 64;

// The product of an input and one panel of the weight. Everything is bfloat16; steps are in elements.
struct PanelProduct {
  const std::uint16_t* input;
  std::size_t input_step;  // from row to row
  std::size_t rows;        // of the input
  std::size_t inner;       // the length of a row
  Sums sums;
  const std::uint16_t* panel;
  std::size_t outer;          // rows of the panel
  const std::uint16_t* bias;  // null for none
  std::uint16_t* result;
  std::size_t result_step;
};

struct ProductKernels {
  // Brings `outer` rows of a weight into a panel's order: of every row the first two values, then the next two.
  void (*arrange)(const std::uint16_t* rows, std::size_t inner, std::size_t outer, std::uint16_t* panel) noexcept;
  void (*multiply)(const PanelProduct& product) noexcept;           // in pairs, or in lanes
  void (*multiply_by_tiles)(const PanelProduct& product) noexcept;  // null without tiles
  void (*multiply_as_tiles)(const PanelProduct& product) noexcept;  // the same bits by other instructions
  void (*multiply_by_dots)(const PanelProduct& product) noexcept;
};

extern const ProductKernels avx512_bf16_products;
extern const ProductKernels amx_products;

// Of a thread whose process may use tiles; it has none in use afterwards.
void multiply_by_tiles(const PanelProduct& product) noexcept;
// Meant for few rows.
void multiply_as_tiles(const PanelProduct& product) noexcept;
// Meant for small products.
void multiply_by_dots(const PanelProduct& product) noexcept;

}  // namespace habana_mp::kernels

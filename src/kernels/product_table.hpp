// The kernels of an instruction set for products with a weight. No inline functions, for the reason given in
// table.hpp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/product.hpp"

namespace habana_mp::kernels {

// ---- in float32, for processors that multiply nothing else ----

// The columns of the result that a thread computes, for some rows.
struct FusedPart {
  std::size_t row;
  std::size_t rows;
  std::size_t column;
  std::size_t panels;  // of columns; the last one may be wider than what is left of the weight
  std::size_t panel_width;
  float* scratch;
  // The casts of this instruction set.
  void (*widen)(const void* source, void* target, std::size_t count) noexcept;
  void (*narrow)(const void* source, void* target, std::size_t count) noexcept;

  [[nodiscard]] std::size_t columns_of_panels() const { return panels * panel_width; }
};

struct FusedKernels {
  std::size_t panel_width;
  std::size_t most_rows;  // at once
  std::size_t few_rows;   // with at most so many, a weight that is [outer][inner] is not brought into panels
  void (*multiply)(const Product& product, const FusedPart& part) noexcept;
};

extern const FusedKernels avx2_fused;
extern const FusedKernels avx512_fused;
extern const FusedKernels neon_fused;

// ---- in pairs ----

// A panel has at most this many columns.
inline constexpr std::size_t panel_columns = 64;

// The product of rows and at most `panel_columns` columns. The rows are those of the input or of the weight, the
// columns those of the other one. All values are bfloat16; steps are in elements.
struct PanelProduct {
  const std::uint16_t* rows;
  std::size_t row_step;  // from row to row
  std::size_t row_count;
  std::size_t inner;           // the length of a row
  const std::uint16_t* panel;  // of `multiply_by_tiles` as `arrange` makes it; else the first column
  std::size_t column_step;     // from column to column; if `inner_first`, between two values of a column
  bool inner_first;            // the first values of two columns are adjacent
  std::size_t columns;
  const std::uint16_t* row_bias;     // one number for each row, only of `multiply_by_tiles`; may be null
  const std::uint16_t* column_bias;  // one number for each column; may be null
  std::uint16_t* result;
  float* sums;  // if not null, the result in float32, in place of `result`
  std::size_t result_step;
  void* scratch;  // of `multiply`: aligned memory for `scratch_bytes`

  [[nodiscard]] bool has_bias() const { return row_bias != nullptr || column_bias != nullptr; }
  static constexpr std::size_t scratch_bytes(std::size_t rows) {
    return panel_columns * (sum_block * sizeof(std::uint16_t) + rows * sizeof(float));
  }
};

struct ProductKernels {
  // Copies `count` columns to a panel: the first two values of every column, then the next two, and so on. The values
  // of a column are adjacent, and the first values of two columns are so many elements `apart`.
  void (*arrange)(const std::uint16_t* columns, std::size_t apart, std::size_t inner, std::size_t count,
                  std::uint16_t* panel) noexcept;
  void (*multiply)(const PanelProduct& product) noexcept;
  void (*multiply_few_rows)(const PanelProduct& product) noexcept;  // of columns whose values are adjacent
  void (*multiply_by_tiles)(const PanelProduct& product) noexcept;  // null without tiles
};

extern const ProductKernels avx512_bf16_products;
extern const ProductKernels amx_products;

// The process must have permission to use tiles. No tiles are in use afterwards.
void multiply_by_tiles(const PanelProduct& product) noexcept;

}  // namespace habana_mp::kernels

// Sums in the order of AMX's tiles but without tiles. This is for few rows, whose speed is limited by memory bandwidth
// and not by arithmetic. The results have the same bits as those of product_amx.cpp.
#include "kernels/tile_sums.hpp"

namespace habana_mp::kernels {
namespace {

constexpr std::size_t most_columns = panel_rows / lanes;  // in registers
// At most `most_rows` rows share one pass over the panel. Of these, `rows_at_once` rows are summed at the same time:
// their sums, the values of a column and an input take 28 of the 32 registers.
constexpr std::size_t most_rows = 8;
constexpr std::size_t rows_at_once = 3;

struct alignas(64) BlockSums {
  float values[most_rows][panel_rows];
};

// Tiles treat denormals as zero, both in their operands and in their results. The compiler does not know that
// arithmetic depends on this mode, and could move it out of the mode's scope. So such arithmetic is only in functions
// that are not inlined.
class DenormalsAreZero {
 public:
  DenormalsAreZero() {
    constexpr unsigned no_exceptions = 0x1f80;
    constexpr unsigned of_results = 0x8000;
    constexpr unsigned of_operands = 0x0040;
    _mm_setcsr(no_exceptions | of_results | of_operands);
  }
  ~DenormalsAreZero() { _mm_setcsr(before_); }
  DenormalsAreZero(const DenormalsAreZero&) = delete;
  DenormalsAreZero& operator=(const DenormalsAreZero&) = delete;

 private:
  unsigned before_ = _mm_getcsr();
};

// The pairs of one tile, or the remaining pairs of the last tile, in several rows and in the panel.
struct Group {
  const std::uint16_t* input;  // of the first row
  std::size_t input_step;
  const std::uint16_t* panel;
  std::size_t outer;
  std::size_t pairs;
  bool fetches;  // true for the rows that read the panel first: they prefetch its later parts
};

template <std::size_t rows, std::size_t columns>
inline void add_group(const Group& group, float (*sums)[panel_rows]) {
  alignas(64) float even_inputs[rows][pairs_of_tile];
  alignas(64) float odd_inputs[rows][pairs_of_tile];
  for (std::size_t i = 0; i < rows; ++i) {
    const __m512i pairs = _mm512_maskz_loadu_epi32(lanes32(group.pairs), group.input + i * group.input_step);
    _mm512_store_ps(even_inputs[i], even_of(pairs));
    _mm512_store_ps(odd_inputs[i], odd_of(pairs));
  }
  __m512 even[rows][columns];
  __m512 odd[rows][columns];
#pragma GCC unroll 3
  for (std::size_t i = 0; i < rows; ++i) {
#pragma GCC unroll 4
    for (std::size_t j = 0; j < columns; ++j) even[i][j] = odd[i][j] = _mm512_setzero_ps();
  }
  const __mmask16 last = lanes32(group.outer - (columns - 1) * lanes);
  const std::uint16_t* panel = group.panel;
  for (std::size_t pair = 0; pair < group.pairs; ++pair, panel += group.outer * 2) {
    if (group.fetches) {
#pragma GCC unroll 4
      for (std::size_t j = 0; j < columns; ++j) _mm_prefetch(panel + soon + j * line, _MM_HINT_T0);
    }
#pragma GCC unroll 4
    for (std::size_t j = 0; j < columns; ++j) {
      const __mmask16 there = j + 1 < columns ? lanes32(lanes) : last;
      const __m512i values = _mm512_maskz_loadu_epi32(there, panel + j * lanes * 2);
      const __m512 even_values = even_of(values);
      const __m512 odd_values = odd_of(values);
#pragma GCC unroll 3
      for (std::size_t i = 0; i < rows; ++i) {
        even[i][j] = _mm512_fmadd_ps(_mm512_set1_ps(even_inputs[i][pair]), even_values, even[i][j]);
        odd[i][j] = _mm512_fmadd_ps(_mm512_set1_ps(odd_inputs[i][pair]), odd_values, odd[i][j]);
      }
    }
  }
#pragma GCC unroll 3
  for (std::size_t i = 0; i < rows; ++i) {
#pragma GCC unroll 4
    for (std::size_t j = 0; j < columns; ++j) {
      float* const sum = sums[i] + j * lanes;
      _mm512_store_ps(sum, _mm512_add_ps(_mm512_load_ps(sum), _mm512_add_ps(even[i][j], odd[i][j])));
    }
  }
}

// Sums the pairs from `begin` to `end`, for `rows` rows from `row` on.
template <std::size_t columns>
[[gnu::noinline]] void sum_block(const PanelProduct& product, std::size_t row, std::size_t rows, std::size_t begin,
                                 std::size_t end, BlockSums& sums) {
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < columns; ++j) _mm512_store_ps(sums.values[i] + j * lanes, _mm512_setzero_ps());
  }
  const std::size_t shares = (rows + rows_at_once - 1) / rows_at_once;
  for (std::size_t pair = begin; pair < end; pair += pairs_of_tile) {
    for (std::size_t i = 0; i < shares; ++i) {
      const std::size_t first = rows * i / shares;
      const Group group{
          .input = product.input + (row + first) * product.input_step + pair * 2,
          .input_step = product.input_step,
          .panel = product.panel + pair * product.outer * 2,
          .outer = product.outer,
          .pairs = pairs_of_tile < end - pair ? pairs_of_tile : end - pair,
          .fetches = i == 0,
      };
      float(*const places)[panel_rows] = sums.values + first;
      switch (rows * (i + 1) / shares - first) {
        case 3:
          add_group<3, columns>(group, places);
          break;
        case 2:
          add_group<2, columns>(group, places);
          break;
        default:
          add_group<1, columns>(group, places);
          break;
      }
    }
  }
}

template <std::size_t columns>
void multiply_panel(const PanelProduct& product) {
  const std::size_t pairs = product.inner / 2;
  const std::size_t block = product.sums.block / 2;
  BlockSums total;  // both are written before they are read
  BlockSums one;
  for (std::size_t row = 0; row < product.rows; row += most_rows) {
    const std::size_t rows = most_rows < product.rows - row ? most_rows : product.rows - row;
    const Patch patch{row, rows, 0, product.outer, total.values[0], panel_rows};
    for (std::size_t begin = 0; begin < pairs; begin += block) {
      const std::size_t end = block < pairs - begin ? begin + block : pairs;
      {
        const DenormalsAreZero meanwhile;
        sum_block<columns>(product, row, rows, begin, end, begin == 0 ? total : one);
      }
      if (begin != 0) add_block(patch, one.values[0]);
    }
    finish(product, patch);
  }
}

}  // namespace

void multiply_as_tiles(const PanelProduct& product) noexcept {
  switch ((product.outer + lanes - 1) / lanes) {
    case most_columns:
      multiply_panel<most_columns>(product);
      break;
    case 3:
      multiply_panel<3>(product);
      break;
    case 2:
      multiply_panel<2>(product);
      break;
    default:
      multiply_panel<1>(product);
      break;
  }
}

}  // namespace habana_mp::kernels

#include "kernels/avx512.hpp"
#include "kernels/squares.hpp"

namespace habana_mp::kernels {
namespace {

constexpr std::size_t lanes = 16;
constexpr std::size_t registers = panel_columns / lanes;  // for a panel's sums
// The most rows of the input at once that fit in the 32 registers: four registers of sums for each row, one for a pair
// of input values and four for the panel's values.
constexpr std::size_t most_rows = 6;
constexpr std::size_t line = 32;  // a cache line, in bfloat16 elements

// A part of the work: the pairs from `begin` to `end` of several rows, of which `row` is the first.
struct Part {
  std::size_t row;
  std::size_t begin;
  std::size_t end;
  const std::uint16_t* panel;  // the pairs of all columns
  float* waiting;              // the sums of the pairs before
  // The same pairs of the rows that come next. They are prefetched, a cache line for each pair.
  const std::uint16_t* ahead;
};

// Access to 16 rows of the panel, or to the first ones of them.
struct WholeLanes {
  static __m512i load(const std::uint16_t* from) { return _mm512_loadu_si512(from); }
  static __m256i load16(const std::uint16_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static void store(std::uint16_t* to, __m256i value) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value); }
  static void store(float* to, __m512 value) { _mm512_storeu_ps(to, value); }
};
struct FirstLanes {
  __mmask16 there;
  [[nodiscard]] __m512i load(const std::uint16_t* from) const { return _mm512_maskz_loadu_epi32(there, from); }
  [[nodiscard]] __m256i load16(const std::uint16_t* from) const { return _mm256_maskz_loadu_epi16(there, from); }
  void store(std::uint16_t* to, __m256i value) const { _mm256_mask_storeu_epi16(to, there, value); }
  void store(float* to, __m512 value) const { _mm512_mask_storeu_ps(to, there, value); }
};

// Adds the bias to the sum of column `j * lanes` and the following ones in a row, rounds and writes the result.
template <class Lanes>
inline void finish(const PanelProduct& product, std::size_t row, std::size_t j, Lanes these, __m512 sum) {
  if (product.column_bias != nullptr) {
    const __m256i bias = these.load16(product.column_bias + j * lanes);
    sum = _mm512_add_ps(sum, _mm512_castsi512_ps(f32_bits_of_bf16(bias)));
  }
  const std::size_t to = row * product.result_step + j * lanes;
  if (product.sums != nullptr) {
    these.store(product.sums + to, sum);
  } else {
    these.store(product.result + to, (__m256i)_mm512_cvtneps_pbh(sum));
  }
}

// Multiplies a part of the work. `last` accesses the last of the columns. Each loop over the sums is unrolled:
// otherwise the compiler stores them in each round.
template <std::size_t rows, std::size_t columns, class Last>
void multiply_part(const PanelProduct& product, const Part& part, Last last) {
  __m512 sums[rows][columns];
#pragma GCC unroll 6
  for (auto& of_row : sums) {
#pragma GCC unroll 4
    for (__m512& sum : of_row) sum = _mm512_setzero_ps();
  }
  const std::uint16_t* input = product.rows + part.row * product.row_step;
  const std::size_t pair_step = product.columns * 2;
  const std::uint16_t* panel = part.panel;
  const std::uint16_t* ahead = part.ahead;
  const std::uint16_t* const after = ahead + most_rows * product.row_step;
  std::size_t of_row = 0;
  for (std::size_t pair = part.begin; pair < part.end; ++pair, panel += pair_step) {
    _mm_prefetch(ahead + of_row, _MM_HINT_T0);
    of_row += line;
    if (of_row == sum_block) {
      of_row = 0;
      ahead += ahead == after ? 0 : product.row_step;
    }
    __m512bh values[columns];
#pragma GCC unroll 4
    for (std::size_t j = 0; j + 1 < columns; ++j) values[j] = (__m512bh)WholeLanes::load(panel + j * lanes * 2);
    values[columns - 1] = (__m512bh)last.load(panel + (columns - 1) * lanes * 2);
#pragma GCC unroll 6
    for (std::size_t i = 0; i < rows; ++i) {
      std::int32_t two = 0;
      __builtin_memcpy(&two, input + i * product.row_step + pair * 2, sizeof two);
      const auto both = (__m512bh)_mm512_set1_epi32(two);
#pragma GCC unroll 4
      for (std::size_t j = 0; j < columns; ++j) sums[i][j] = _mm512_dpbf16_ps(sums[i][j], both, values[j]);
    }
  }
  float* const waiting = part.waiting + part.row * panel_columns;
#pragma GCC unroll 6
  for (std::size_t i = 0; i < rows; ++i) {
#pragma GCC unroll 4
    for (std::size_t j = 0; j < columns; ++j) {
      float* const place = waiting + i * panel_columns + j * lanes;
      const __m512 sum = part.begin == 0 ? sums[i][j] : _mm512_add_ps(_mm512_load_ps(place), sums[i][j]);
      if (part.end * 2 != product.inner) {
        _mm512_store_ps(place, sum);
      } else if (j + 1 < columns) {
        finish(product, part.row + i, j, WholeLanes{}, sum);
      } else {
        finish(product, part.row + i, j, last, sum);
      }
    }
  }
}

template <std::size_t columns, class Last>
void multiply_rows(const PanelProduct& product, const Part& part, std::size_t rows, Last last) {
  switch (rows) {
    case 6:
      multiply_part<6, columns>(product, part, last);
      break;
    case 5:
      multiply_part<5, columns>(product, part, last);
      break;
    case 4:
      multiply_part<4, columns>(product, part, last);
      break;
    case 3:
      multiply_part<3, columns>(product, part, last);
      break;
    case 2:
      multiply_part<2, columns>(product, part, last);
      break;
    default:
      multiply_part<1, columns>(product, part, last);
      break;
  }
}

// A pair of bfloat16 is moved as one 32-bit number.
void arrange(const std::uint16_t* columns, std::size_t apart, std::size_t inner, std::size_t count,
             std::uint16_t* panel) noexcept {
  const std::size_t pairs = inner / 2;
  for (std::size_t column = 0; column < count; column += lanes) {
    const __mmask16 columns_there = lanes32(count - column);
    const std::uint16_t* const next = column + lanes < count ? columns + (column + lanes) * apart : columns + inner;
    const std::size_t most = lanes < count - column ? lanes : count - column;
    for (std::size_t pair = 0; pair < pairs; pair += lanes) {
      const __mmask16 pairs_there = lanes32(pairs - pair);
      const std::uint16_t* const from = columns + column * apart + pair * 2;
      __m512i square[lanes] = {};
      for (std::size_t i = 0; i < most; ++i) square[i] = _mm512_maskz_loadu_epi32(pairs_there, from + i * apart);
      for (std::size_t i = 0; i < lanes; ++i) _mm_prefetch(next + i * apart + pair * 2, _MM_HINT_T0);
      transpose_square(square);
      const std::size_t end = lanes < pairs - pair ? lanes : pairs - pair;
      for (std::size_t i = 0; i < end; ++i) {
        _mm512_mask_storeu_epi32(panel + ((pair + i) * count + column) * 2, columns_there, square[i]);
      }
    }
  }
}

// Two adjacent rows hold the pairs of all columns. The processor does not foresee which lines come next.
constexpr std::size_t rows_ahead = 32;
void arrange_rows(const std::uint16_t* rows, std::size_t apart, std::size_t inner, std::size_t count,
                  std::uint16_t* panel) noexcept {
  for (std::size_t k = 0; k < inner; k += 2, rows += 2 * apart) {
    for (std::size_t i = 0; i < 2; ++i) {
      const std::uint16_t* const ahead = rows + (rows_ahead + i) * apart;
      for (std::size_t column = 0; column < count; column += line) _mm_prefetch(ahead + column, _MM_HINT_T0);
    }
    for (std::size_t column = 0; column < count; column += lanes, panel += 2 * lanes) {
      const __mmask16 there = lanes32(count - column);
      const __m512i first = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(there, rows + column));
      const __m512i second = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(there, rows + apart + column));
      _mm512_mask_storeu_epi32(panel, there, _mm512_or_si512(first, _mm512_slli_epi32(second, 16)));
    }
    panel -= count % lanes == 0 ? 0 : 2 * (lanes - count % lanes);
  }
}

// All rows take their turn with each block of the columns, which stays in a cache as a panel. Rows are divided into
// equal shares of at most `most_rows`: a share of few rows makes little use of the panel data that it reads.
template <std::size_t columns, class Last>
void multiply_panel(const PanelProduct& product, Last last) {
  auto* const panel = static_cast<std::uint16_t*>(product.scratch);
  float* const waiting = reinterpret_cast<float*>(panel + panel_columns * sum_block);
  const std::size_t pairs = product.inner / 2;
  const std::size_t block = sum_block / 2;
  const std::size_t shares = (product.row_count + most_rows - 1) / most_rows;
  for (std::size_t begin = 0; begin < pairs; begin += block) {
    const std::size_t end = block < pairs - begin ? begin + block : pairs;
    const std::uint16_t* const from = product.panel + begin * 2 * (product.inner_first ? product.column_step : 1);
    (product.inner_first ? arrange_rows : arrange)(from, product.column_step, (end - begin) * 2, product.columns,
                                                   panel);
    for (std::size_t i = 0; i < shares; ++i) {
      const std::size_t row = product.row_count * i / shares;
      const std::size_t next = product.row_count * (i + 1) / shares;
      // The last rows prefetch the next block of the first ones.
      const std::size_t ahead = i + 1 < shares ? next * product.row_step + begin * 2 : end * 2;
      multiply_rows<columns>(product, {row, begin, end, panel, waiting, product.rows + ahead}, next - row, last);
    }
  }
}

void multiply(const PanelProduct& product) noexcept {
  if (product.columns == panel_columns) {
    multiply_panel<registers>(product, WholeLanes{});
    return;
  }
  const std::size_t columns = (product.columns + lanes - 1) / lanes;
  const FirstLanes last{lanes32(product.columns - (columns - 1) * lanes)};
  switch (columns) {
    case 4:
      multiply_panel<4>(product, last);
      break;
    case 3:
      multiply_panel<3>(product, last);
      break;
    case 2:
      multiply_panel<2>(product, last);
      break;
    default:
      multiply_panel<1>(product, last);
      break;
  }
}

constexpr std::size_t lines_ahead = 4;

// Multiplies up to 8 rows with up to 16 columns, which are stored as `arrange` takes them. The pairs of 16 columns are
// brought together in registers.
template <std::size_t rows>
void multiply_columns(const PanelProduct& product, std::size_t row, std::size_t column) {
  const std::size_t pairs = product.inner / 2;
  const std::size_t block = sum_block / 2;
  const std::size_t left = product.columns - column;
  const std::size_t count = lanes < left ? lanes : left;
  const std::uint16_t* const columns = product.panel + column * product.column_step;
  const std::uint16_t* const input = product.rows + row * product.row_step;
  __m512 total[rows] = {};
  for (std::size_t begin = 0; begin < pairs; begin += block) {
    const std::size_t end = block < pairs - begin ? begin + block : pairs;
    __m512 sums[rows];
    for (__m512& sum : sums) sum = _mm512_setzero_ps();
    const auto add = [&](std::size_t pair, __m512i values) {
#pragma GCC unroll 8
      for (std::size_t i = 0; i < rows; ++i) {
        std::int32_t two = 0;
        __builtin_memcpy(&two, input + i * product.row_step + pair * 2, sizeof two);
        sums[i] = _mm512_dpbf16_ps(sums[i], (__m512bh)_mm512_set1_epi32(two), (__m512bh)values);
      }
    };
    std::size_t pair = begin;
    __m512i square[lanes];
    for (; count == lanes && pair + lanes <= end; pair += lanes) {
      // The lines that come next, which are those of other columns at the end.
      const std::size_t ahead = pair + lines_ahead * lanes;
      const std::uint16_t* const next =
          columns + (ahead < pairs ? ahead * 2 : lanes * product.column_step + (ahead - pairs) * 2);
#pragma GCC unroll 16
      for (std::size_t i = 0; i < lanes; ++i) {
        square[i] = WholeLanes::load(columns + i * product.column_step + pair * 2);
        _mm_prefetch(next + i * product.column_step, _MM_HINT_T1);
      }
      transpose_square(square);
#pragma GCC unroll 16
      for (std::size_t i = 0; i < lanes; ++i) add(pair + i, square[i]);
    }
    for (; pair < end; pair += lanes) {
      const FirstLanes there{lanes32(end - pair)};
      for (std::size_t i = 0; i < lanes; ++i) {
        square[i] = i < count ? there.load(columns + i * product.column_step + pair * 2) : _mm512_setzero_si512();
      }
      transpose_square(square);
      for (std::size_t i = 0; i < lanes && pair + i < end; ++i) add(pair + i, square[i]);
    }
    for (std::size_t i = 0; i < rows; ++i) total[i] = begin == 0 ? sums[i] : _mm512_add_ps(total[i], sums[i]);
  }
  for (std::size_t i = 0; i < rows; ++i) {
    finish(product, row + i, column / lanes, FirstLanes{lanes32(count)}, total[i]);
  }
}

void multiply_few_rows(const PanelProduct& product) noexcept {
  constexpr std::size_t most = 8;
  constexpr void (*kernels[most])(const PanelProduct&, std::size_t, std::size_t) = {
      multiply_columns<1>, multiply_columns<2>, multiply_columns<3>, multiply_columns<4>,
      multiply_columns<5>, multiply_columns<6>, multiply_columns<7>, multiply_columns<8>};
  const std::size_t shares = (product.row_count + most - 1) / most;
  for (std::size_t column = 0; column < product.columns; column += lanes) {
    for (std::size_t i = 0; i < shares; ++i) {
      const std::size_t row = product.row_count * i / shares;
      kernels[product.row_count * (i + 1) / shares - row - 1](product, row, column);
    }
  }
}

}  // namespace

const ProductKernels avx512_bf16_products = {arrange, multiply, multiply_few_rows, nullptr};
#if defined(HABANA_MP_AMX)
const ProductKernels amx_products = {arrange, multiply, multiply_few_rows, multiply_by_tiles};
#endif

}  // namespace habana_mp::kernels

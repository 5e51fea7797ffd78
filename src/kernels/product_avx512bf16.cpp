#include "kernels/avx512.hpp"

namespace habana_mp::kernels {
namespace {

constexpr std::size_t lanes = 16;
constexpr std::size_t registers = panel_rows / lanes;  // for a panel's sums
// The most rows of the input at once that fit in the 32 registers: four registers of sums for each row, one for a pair
// of input values and four for the panel's values.
constexpr std::size_t most_rows = 6;
constexpr std::size_t line = 32;  // a cache line, in bfloat16 elements
// With so few rows, reading a weight is limited by memory bandwidth, so it is prefetched. Inputs with more rows are
// never divided into so few.
constexpr std::size_t few_rows = 2;
constexpr std::size_t soon = std::size_t{1} << 13;  // in bfloat16 elements; measured

template <std::size_t rows, std::size_t columns>
using RowSums = __m512[rows][columns];

// This many rows of the input go through the panel block by block; their sums are stored in between.
constexpr std::size_t waiting_rows = 11 * most_rows;
struct alignas(64) WaitingSums {
  float values[waiting_rows][panel_rows];
};

// A part of the work: the pairs from `begin` to `end` of several rows, of which `row` is the first.
struct Part {
  std::size_t row;
  std::size_t begin;
  std::size_t end;
  // The data after this block. The rows of this block prefetch it, one cache line for each pair.
  const std::uint16_t* ahead;
};

// Access to 16 rows of the panel, or to the first ones of them.
struct WholeLanes {
  static __m512i load(const std::uint16_t* from) { return _mm512_loadu_si512(from); }
  static __m256i load16(const std::uint16_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static void store(std::uint16_t* to, __m256i value) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value); }
};
struct FirstLanes {
  __mmask16 there;
  [[nodiscard]] __m512i load(const std::uint16_t* from) const { return _mm512_maskz_loadu_epi32(there, from); }
  [[nodiscard]] __m256i load16(const std::uint16_t* from) const { return _mm256_maskz_loadu_epi16(there, from); }
  void store(std::uint16_t* to, __m256i value) const { _mm256_mask_storeu_epi16(to, there, value); }
};

// Adds a part's products to the sums. `last` loads the last of the columns.
template <std::size_t rows, std::size_t columns, class Last>
inline void add_products(const PanelProduct& product, const Part& part, Last last, RowSums<rows, columns>& sums) {
  const std::uint16_t* input = product.input + part.row * product.input_step;
  const std::size_t pair_step = product.outer * 2;
  const std::uint16_t* panel = product.panel + part.begin * pair_step;
  const std::uint16_t* ahead = part.ahead;
  for (std::size_t pair = part.begin; pair < part.end; ++pair, panel += pair_step, ahead += line) {
    if constexpr (rows <= few_rows) {
#pragma GCC unroll 4
      for (std::size_t j = 0; j < columns; ++j) _mm_prefetch(panel + soon + j * line, _MM_HINT_T0);
    } else {
      _mm_prefetch(ahead, _MM_HINT_T1);
    }
    __m512bh values[columns];
#pragma GCC unroll 4
    for (std::size_t j = 0; j + 1 < columns; ++j) values[j] = (__m512bh)WholeLanes::load(panel + j * lanes * 2);
    values[columns - 1] = (__m512bh)last.load(panel + (columns - 1) * lanes * 2);
#pragma GCC unroll 6
    for (std::size_t i = 0; i < rows; ++i) {
      std::int32_t two = 0;
      __builtin_memcpy(&two, input + i * product.input_step + pair * 2, sizeof two);
      const auto both = (__m512bh)_mm512_set1_epi32(two);
#pragma GCC unroll 4
      for (std::size_t j = 0; j < columns; ++j) sums[i][j] = _mm512_dpbf16_ps(sums[i][j], both, values[j]);
    }
  }
}

template <std::size_t rows, std::size_t columns, class Last>
void finish(const PanelProduct& product, std::size_t row, Last last, const RowSums<rows, columns>& sums) {
  for (std::size_t j = 0; j < columns; ++j) {
    const bool is_last = j + 1 == columns;
    __m512 bias = _mm512_setzero_ps();
    if (product.bias != nullptr) {
      const std::uint16_t* from = product.bias + j * lanes;
      bias = _mm512_castsi512_ps(f32_bits_of_bf16(is_last ? last.load16(from) : WholeLanes::load16(from)));
    }
    for (std::size_t i = 0; i < rows; ++i) {
      const __m512 sum = product.bias != nullptr ? _mm512_add_ps(sums[i][j], bias) : sums[i][j];
      const auto rounded = (__m256i)_mm512_cvtneps_pbh(sum);
      std::uint16_t* to = product.result + (row + i) * product.result_step + j * lanes;
      is_last ? last.store(to, rounded) : WholeLanes::store(to, rounded);
    }
  }
}

template <std::size_t rows, std::size_t columns, class Last>
void multiply_part(const PanelProduct& product, const Part& part, Last last, WaitingSums& waiting) {
  RowSums<rows, columns> sums;
  for (auto& of_row : sums) {
    for (__m512& sum : of_row) sum = _mm512_setzero_ps();
  }
  add_products(product, part, last, sums);
  float(&places)[waiting_rows][panel_rows] = waiting.values;
  const std::size_t place = part.row % waiting_rows;
  if (part.begin != 0) {
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t j = 0; j < columns; ++j) {
        sums[i][j] = _mm512_add_ps(_mm512_load_ps(places[place + i] + j * lanes), sums[i][j]);
      }
    }
  }
  if (part.end * 2 == product.inner) {
    finish<rows, columns>(product, part.row, last, sums);
    return;
  }
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < columns; ++j) _mm512_store_ps(places[place + i] + j * lanes, sums[i][j]);
  }
}

template <std::size_t columns, class Last>
void multiply_rows(const PanelProduct& product, const Part& part, std::size_t rows, Last last, WaitingSums& waiting) {
  switch (rows) {
    case 6:
      multiply_part<6, columns>(product, part, last, waiting);
      break;
    case 5:
      multiply_part<5, columns>(product, part, last, waiting);
      break;
    case 4:
      multiply_part<4, columns>(product, part, last, waiting);
      break;
    case 3:
      multiply_part<3, columns>(product, part, last, waiting);
      break;
    case 2:
      multiply_part<2, columns>(product, part, last, waiting);
      break;
    default:
      multiply_part<1, columns>(product, part, last, waiting);
      break;
  }
}

// Rows are divided into equal shares of at most `most_rows`: a share of few rows makes little use of the panel data
// that it reads.
template <std::size_t columns, class Last>
void multiply_panel(const PanelProduct& product, Last last) {
  WaitingSums waiting;  // written before it is read
  const std::size_t pairs = product.inner / 2;
  const std::size_t block = product.sums.block / 2;
  for (std::size_t first = 0; first < product.rows; first += waiting_rows) {
    const std::size_t rows = waiting_rows < product.rows - first ? waiting_rows : product.rows - first;
    const std::size_t shares = (rows + most_rows - 1) / most_rows;
    for (std::size_t begin = 0; begin < pairs; begin += block) {
      const std::size_t end = block < pairs - begin ? begin + block : pairs;
      const std::uint16_t* ahead = product.panel + end * product.outer * 2;
      for (std::size_t i = 0; i < shares; ++i) {
        const std::size_t row = rows * i / shares;
        multiply_rows<columns>(product, {first + row, begin, end, ahead}, rows * (i + 1) / shares - row, last, waiting);
        ahead += (end - begin) * line;
      }
    }
  }
}

// Sums like a vector of 16 pairs. The panel's columns take turns with this many pairs, which fit in the first-level
// cache. Their 16 sums are stored in between.
constexpr std::size_t pairs_at_once = 64;
struct alignas(64) LaneSums {
  float values[lanes][lanes];
};

// `fetches`: true for the first column, which prefetches for the whole panel.
template <bool fetches>
void add_by_lanes(const std::uint16_t* input, const std::uint16_t* panel, std::size_t pair_step, std::size_t pairs,
                  FirstLanes there, LaneSums& waiting) {
  __m512 sums[lanes];
#pragma GCC unroll 16
  for (std::size_t i = 0; i < lanes; ++i) sums[i] = _mm512_load_ps(waiting.values[i]);
  const auto both = [=](std::size_t pair) {
    std::int32_t two = 0;
    __builtin_memcpy(&two, input + pair * 2, sizeof two);
    return (__m512bh)_mm512_set1_epi32(two);
  };
  std::size_t pair = 0;
  for (; pair + lanes <= pairs; pair += lanes) {
#pragma GCC unroll 16
    for (std::size_t i = 0; i < lanes; ++i) {
      const std::uint16_t* const from = panel + (pair + i) * pair_step;
      if constexpr (fetches) {
#pragma GCC unroll 4
        for (std::size_t j = 0; j < registers; ++j) _mm_prefetch(from + soon + j * line, _MM_HINT_T0);
      }
      sums[i] = _mm512_dpbf16_ps(sums[i], both(pair + i), (__m512bh)there.load(from));
    }
  }
#pragma GCC unroll 16
  for (std::size_t i = 0; i < lanes; ++i) _mm512_store_ps(waiting.values[i], sums[i]);
  for (std::size_t i = 0; pair < pairs; ++pair, ++i) {
    const auto values = (__m512bh)there.load(panel + pair * pair_step);
    const __m512 sum = _mm512_dpbf16_ps(_mm512_load_ps(waiting.values[i]), both(pair), values);
    _mm512_store_ps(waiting.values[i], sum);
  }
}

__m512 sum_of_lanes(const LaneSums& waiting) {
  __m512 sums[lanes];
  for (std::size_t i = 0; i < lanes; ++i) sums[i] = _mm512_load_ps(waiting.values[i]);
  for (std::size_t half = lanes / 2; half >= 4; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) sums[i] = _mm512_add_ps(sums[i], sums[i + half]);
  }
  return _mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3]));
}

void multiply_by_lanes(const PanelProduct& product) {
  const std::size_t pairs = product.inner / 2;
  const std::size_t pair_step = product.outer * 2;
  const std::size_t columns = (product.outer + lanes - 1) / lanes;
  for (std::size_t row = 0; row < product.rows; ++row) {
    const std::uint16_t* const input = product.input + row * product.input_step;
    LaneSums waiting[registers] = {};
    for (std::size_t begin = 0; begin < pairs; begin += pairs_at_once) {
      const std::size_t count = pairs_at_once < pairs - begin ? pairs_at_once : pairs - begin;
      for (std::size_t j = 0; j < columns; ++j) {
        const std::uint16_t* const panel = product.panel + begin * pair_step + j * lanes * 2;
        const FirstLanes there{lanes32(product.outer - j * lanes)};
        if (j == 0) {
          add_by_lanes<true>(input + begin * 2, panel, pair_step, count, there, waiting[j]);
        } else {
          add_by_lanes<false>(input + begin * 2, panel, pair_step, count, there, waiting[j]);
        }
      }
    }
    for (std::size_t j = 0; j < columns; ++j) {
      PanelProduct column = product;
      if (column.bias != nullptr) column.bias += j * lanes;
      column.result += j * lanes;
      const RowSums<1, 1> sum = {{sum_of_lanes(waiting[j])}};
      finish<1, 1>(column, row, FirstLanes{lanes32(product.outer - j * lanes)}, sum);
    }
  }
}

void multiply(const PanelProduct& product) noexcept {
  if (product.sums.order == Order::lanes) {
    multiply_by_lanes(product);
    return;
  }
  if (product.outer == panel_rows) {
    multiply_panel<registers>(product, WholeLanes{});
    return;
  }
  const std::size_t columns = (product.outer + lanes - 1) / lanes;
  const FirstLanes last{lanes32(product.outer - (columns - 1) * lanes)};
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

// A pair of bfloat16 is moved as one 32-bit number.
void arrange(const std::uint16_t* rows, std::size_t inner, std::size_t outer, std::uint16_t* panel) noexcept {
  const std::size_t pairs = inner / 2;
  const __m512i row_steps = _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                               _mm512_set1_epi32(static_cast<int>(pairs)));
  // Two cache lines of each row at a time, so that they are still cached for their last pair.
  constexpr std::size_t at_once = 32;
  for (std::size_t begin = 0; begin < pairs; begin += at_once) {
    const std::size_t end = at_once < pairs - begin ? begin + at_once : pairs;
    for (std::size_t row = 0; row < outer; row += lanes) {
      const __mmask16 there = lanes32(outer - row);
      const std::uint16_t* from = rows + row * inner;
      for (std::size_t pair = begin; pair < end; ++pair) {
        const __m512i values =
            _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), there, row_steps, from + pair * 2, 4);
        _mm512_mask_storeu_epi32(panel + (pair * outer + row) * 2, there, values);
      }
    }
  }
}

}  // namespace

const ProductKernels avx512_bf16_products = {arrange, multiply, nullptr, multiply_as_tiles, multiply_by_dots};
#if defined(HABANA_MP_AMX)
const ProductKernels amx_products = {arrange, multiply, multiply_by_tiles, multiply_as_tiles, multiply_by_dots};
#endif

}  // namespace habana_mp::kernels

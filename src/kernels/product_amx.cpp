// Products with AMX's tiles. The intrinsics need the tiles' numbers as literals: 0 to 3 are the sums of two groups of
// rows by two groups of columns, 4 and 5 the inputs of the row groups, 6 and 7 the weights of the column groups.
#include "kernels/avx512.hpp"
#include "kernels/product_table.hpp"

namespace habana_mp::kernels {
namespace {

constexpr std::size_t lanes = 16;
constexpr std::size_t pairs_of_tile = 16;
constexpr std::size_t tile_side = 16;  // rows of a tile, and columns of float32
constexpr std::size_t square_side = 2 * tile_side;

// A block of rows and columns of the result, and its sums in memory.
struct Patch {
  std::size_t row;
  std::size_t rows;
  std::size_t column;
  std::size_t columns;
  float* sums;
  std::size_t sums_step;  // elements from row to row

  [[nodiscard]] __mmask16 there(std::size_t at) const { return lanes32(columns - at); }
};

// Adds the bias, rounds to bfloat16 and writes the result.
inline void finish(const PanelProduct& product, const Patch& patch) {
  for (std::size_t j = 0; j < patch.columns; j += lanes) {
    const __mmask16 there = patch.there(j);
    const std::size_t column = patch.column + j;
    __m512 bias = _mm512_setzero_ps();
    if (product.column_bias != nullptr) {
      bias = _mm512_castsi512_ps(f32_bits_of_bf16(_mm256_maskz_loadu_epi16(there, product.column_bias + column)));
    }
    for (std::size_t i = 0; i < patch.rows; ++i) {
      __m512 sum = _mm512_maskz_loadu_ps(there, patch.sums + i * patch.sums_step + j);
      if (product.row_bias != nullptr) bias = f32_in_all_lanes(product.row_bias[patch.row + i]);
      if (product.has_bias()) sum = _mm512_add_ps(sum, bias);
      const std::size_t to = (patch.row + i) * product.result_step + column;
      if (product.sums != nullptr) {
        _mm512_mask_storeu_ps(product.sums + to, there, sum);
      } else {
        _mm256_mask_storeu_epi16(product.result + to, there, (__m256i)_mm512_cvtneps_pbh(sum));
      }
    }
  }
}

// The extent of the tiles: rows and columns of a patch, and pairs of values.
struct Shape {
  std::size_t rows;
  std::size_t columns;
  std::size_t pairs;
};

// The operand of the instruction LDTILECFG.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};

  // A tile without rows or columns stays unused.
  void set(std::size_t tile, std::size_t tile_rows, std::size_t numbers) {
    if (tile_rows == 0 || numbers == 0) return;
    rows[tile] = static_cast<std::uint8_t>(tile_rows);
    row_bytes[tile] = static_cast<std::uint16_t>(numbers * sizeof(float));
  }
};

// Returns the part of `all` that goes into the first of two tiles (`first_of`) or into the second (`second_of`).
inline std::size_t first_of(std::size_t all) { return all < tile_side ? all : tile_side; }
inline std::size_t second_of(std::size_t all) { return all - first_of(all); }

// The tiles of this thread, in use from the first `shape` until destruction. Another shape clears them.
class Tiles {
 public:
  Tiles() = default;
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  void shape(const Shape& wanted) {
    if (wanted.rows == now_.rows && wanted.columns == now_.columns && wanted.pairs == now_.pairs) return;
    now_ = wanted;
    const std::size_t rows[2] = {first_of(wanted.rows), second_of(wanted.rows)};
    const std::size_t columns[2] = {first_of(wanted.columns), second_of(wanted.columns)};
    TileConfig config;
    for (std::size_t i = 0; i < 2; ++i) {
      for (std::size_t j = 0; j < 2; ++j) config.set(2 * i + j, rows[i], columns[j]);
      config.set(4 + i, rows[i], wanted.pairs);
      config.set(6 + i, columns[i] == 0 ? 0 : wanted.pairs, columns[i]);
    }
    // GCC assumes that the intrinsic reads only the first bytes.
    asm volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
  }

 private:
  Shape now_{0, 0, 0};
};

// The sums of a patch while they are in tiles. `two_rows`, `two_columns`: there is a second group of rows, of columns.
template <bool two_rows, bool two_columns>
struct Square {
  const PanelProduct& product;
  const Patch& patch;

  static void clear() {
    _tile_zero(0);
    if constexpr (two_columns) _tile_zero(1);
    if constexpr (two_rows) _tile_zero(2);
    if constexpr (two_rows && two_columns) _tile_zero(3);
  }

  void load() const {
    const std::size_t apart = patch.sums_step * sizeof(float);
    const float* const sums = patch.sums;
    const float* const second = sums + tile_side * patch.sums_step;
    _tile_loadd(0, sums, apart);
    if constexpr (two_columns) _tile_loadd(1, sums + tile_side, apart);
    if constexpr (two_rows) _tile_loadd(2, second, apart);
    if constexpr (two_rows && two_columns) _tile_loadd(3, second + tile_side, apart);
  }

  void store() const {
    const std::size_t apart = patch.sums_step * sizeof(float);
    float* const sums = patch.sums;
    float* const second = sums + tile_side * patch.sums_step;
    _tile_stored(0, sums, apart);
    if constexpr (two_columns) _tile_stored(1, sums + tile_side, apart);
    if constexpr (two_rows) _tile_stored(2, second, apart);
    if constexpr (two_rows && two_columns) _tile_stored(3, second + tile_side, apart);
  }

  // Adds the products of a tile's pairs, or of as many pairs as the tiles are shaped for.
  void add(std::size_t pair) const {
    const std::uint16_t* const input = product.rows + patch.row * product.row_step + pair * 2;
    const std::size_t input_step = product.row_step * sizeof *input;
    const std::uint16_t* const weight = product.panel + (pair * product.columns + patch.column) * 2;
    const std::size_t weight_step = product.columns * 2 * sizeof *weight;
    _tile_loadd(6, weight, weight_step);
    if constexpr (two_columns) _tile_loadd(7, weight + 2 * tile_side, weight_step);
    _tile_loadd(4, input, input_step);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (two_columns) _tile_dpbf16ps(1, 4, 7);
    if constexpr (two_rows) {
      _tile_loadd(5, input + tile_side * product.row_step, input_step);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (two_columns) _tile_dpbf16ps(3, 5, 7);
    }
  }

  // Writes the sums to memory. Pairs that do not fill a tile need another shape, for which the sums are stored and
  // loaded again.
  void sum(std::size_t pairs, Tiles& tiles) const {
    const std::size_t rest = pairs % pairs_of_tile;
    const std::size_t filled = pairs - rest;
    if (filled != 0) {
      tiles.shape({patch.rows, patch.columns, pairs_of_tile});
      clear();
      for (std::size_t pair = 0; pair < filled; pair += pairs_of_tile) add(pair);
      store();
    }
    if (rest == 0) return;
    tiles.shape({patch.rows, patch.columns, rest});
    if (filled != 0) {
      load();
    } else {
      clear();
    }
    add(filled);
    store();
  }
};

struct alignas(64) SquareSums {
  float values[square_side][square_side];
};

template <bool two_rows, bool two_columns>
void multiply_patch(const PanelProduct& product, const Patch& patch, Tiles& tiles) {
  Square<two_rows, two_columns>{product, patch}.sum(product.inner / 2, tiles);
  finish(product, patch);
}

}  // namespace

// All rows use one group of columns before the next group, so that its values stay in the caches.
void multiply_by_tiles(const PanelProduct& product) noexcept {
  Tiles tiles;
  SquareSums sums;  // written before it is read
  const auto most = [](std::size_t left) { return square_side < left ? square_side : left; };
  for (std::size_t column = 0; column < product.columns; column += square_side) {
    const std::size_t columns = most(product.columns - column);
    for (std::size_t row = 0; row < product.row_count; row += square_side) {
      const Patch patch{row, most(product.row_count - row), column, columns, sums.values[0], square_side};
      if (patch.rows > tile_side) {
        columns > tile_side ? multiply_patch<true, true>(product, patch, tiles)
                            : multiply_patch<true, false>(product, patch, tiles);
      } else {
        columns > tile_side ? multiply_patch<false, true>(product, patch, tiles)
                            : multiply_patch<false, false>(product, patch, tiles);
      }
    }
  }
}

}  // namespace habana_mp::kernels

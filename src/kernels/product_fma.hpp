// Products of float32 that were bfloat16 or float16 in memory: the kernels of each instruction set are made of this
// code and of its vector type `Isa`. Each file compiles its own copy with its own flags.
//
// A thread computes some columns of the result. It brings a block of the weight into panels of float32, a few columns
// wide, which stay in its caches while all rows of the input are multiplied with them.
#pragma once

#include "kernels/product_table.hpp"

namespace habana_mp::kernels {
namespace {  // NOLINT(google-build-namespaces): see above

// The position of a number in memory, in elements of 16 bits.
inline const std::uint16_t* at(const void* memory, std::size_t position) {
  return static_cast<const std::uint16_t*>(memory) + position;
}

template <class Isa, class Widen>
struct FusedProduct {
  using Floats = Isa::Floats;
  using Words = Isa::Words;
  static constexpr std::size_t lanes = Isa::lanes;
  static constexpr std::size_t width = 2 * lanes;               // columns of a panel
  static constexpr std::size_t line = 32;                       // numbers in a line of the processor's caches
  static constexpr std::size_t lines_ahead = 4;                 // that are prefetched
  static constexpr std::size_t most_numbers = 2 * sum_block;    // of a row that are summed at once
  static constexpr std::size_t odd_part = sum_block * width;    // of a panel, after those at even positions
  static constexpr std::size_t most_rows = Isa::most_sums / 2;  // at once: two registers of sums for each

  const Product& product;
  const FusedPart& part;

  // ---- the weight in panels ----

  // The addresses of `lanes` columns. Those that are not there are the last one again: nothing reads their sums.
  struct Columns {
    const std::uint16_t* first[lanes];

    Columns(const Product& product, std::size_t column) {
      const std::size_t last = product.outer - 1;
      for (std::size_t i = 0; i < lanes; ++i) {
        first[i] = at(product.weight, (column + i < last ? column + i : last) * product.weight_step);
      }
    }

    // Prefetches a line of each column, or of each of those that come `apart` elements later, into the second-level
    // cache.
    void prefetch(std::size_t k, std::size_t apart = 0) const {
#pragma GCC unroll 16
      for (std::size_t i = 0; i < lanes; ++i) __builtin_prefetch(first[i] + apart + k, 0, 2);
    }
  };

  // Loads `count` numbers from position `k` on, or as many as a register holds, of each column, and brings the pairs at
  // one position of all columns together.
  static void load_square(const Columns& columns, std::size_t k, std::size_t count, Words (&square)[lanes]) {
    if (count >= 2 * lanes) {
#pragma GCC unroll 16
      for (std::size_t i = 0; i < lanes; ++i) square[i] = Isa::load_words(columns.first[i] + k);
    } else {
      std::uint16_t copy[2 * lanes] = {};
      for (std::size_t i = 0; i < lanes; ++i) {
        __builtin_memcpy(copy, columns.first[i] + k, count * sizeof *copy);
        square[i] = Isa::load_words(copy);
      }
    }
    Isa::transpose(square);
  }

  // Brings a block of some columns to a panel.
  void arrange(std::size_t column, std::size_t begin, std::size_t count, float* panel) const {
    for (std::size_t half = 0; half < width; half += lanes) {
      const Columns columns(product, column + half);
      for (std::size_t k = 0; k < count; k += 2 * lanes) {
        if (k % line == 0) columns.prefetch(begin + k + lines_ahead * line);
        Words square[lanes];
        load_square(columns, begin + k, count - k, square);
        for (std::size_t i = 0; i < lanes && k + 2 * i < count; ++i) {
          float* const to = panel + (k / 2 + i) * width + half;
          Isa::store(to, Widen::even(square[i]));
          if (k + 2 * i + 1 < count) Isa::store(to + odd_part, Widen::odd(square[i]));
        }
      }
    }
  }

  // Brings all columns of the part to their panels, from a weight whose columns are adjacent. The processor does not
  // foresee which lines come next.
  void arrange_rows(std::size_t begin, std::size_t count, float* panels) const {
    constexpr std::size_t rows_ahead = 16;
    const std::size_t all = part.columns_of_panels();
    const std::size_t left = product.outer - part.column;
    const std::size_t columns = left < all ? left : all;
    const std::uint16_t* row = at(product.weight, begin * product.weight_step + part.column);
    for (std::size_t k = 0; k < count; ++k, row += product.weight_step) {
      float* to = panels + k % 2 * odd_part + k / 2 * width;
      const std::uint16_t* const ahead = row + rows_ahead * product.weight_step;
      for (std::size_t j = 0; j < columns; j += line) __builtin_prefetch(ahead + j);
      std::size_t j = 0;
      for (; j + width <= columns; j += width, to += most_numbers * width) {
        Isa::store(to, Widen::load(row + j));
        Isa::store(to + lanes, Widen::load(row + j + lanes));
      }
      if (j == columns) continue;
      std::uint16_t copy[width] = {};
      __builtin_memcpy(copy, row + j, (columns - j) * sizeof *copy);
      Isa::store(to, Widen::load(copy));
      Isa::store(to + lanes, Widen::load(copy + lanes));
    }
  }

  // ---- the sums ----

  // Sums a block of products for some rows and panels, those at every second position of the input, and adds them to
  // the sums of the blocks before.
  template <std::size_t rows, std::size_t panels>
  void add_block(const float* input, const float* panel, std::size_t count, bool is_first, float* sums) const {
    const std::size_t sums_step = part.columns_of_panels();
    Floats total[rows][panels * 2];
    for (auto& of_row : total) {
      for (Floats& one : of_row) one = Isa::zero();
    }
    for (std::size_t k = 0; k < count; ++k) {
      Floats values[panels * 2];
#pragma GCC unroll 8
      for (std::size_t j = 0; j < panels * 2; ++j) {
        values[j] = Isa::load(panel + (j / 2) * most_numbers * width + k * width + (j % 2) * lanes);
      }
#pragma GCC unroll 12
      for (std::size_t i = 0; i < rows; ++i) {
        const Floats one = Isa::in_all_lanes(input[i * most_numbers + 2 * k]);
#pragma GCC unroll 8
        for (std::size_t j = 0; j < panels * 2; ++j) total[i][j] = Isa::add_product(one, values[j], total[i][j]);
      }
    }
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t j = 0; j < panels * 2; ++j) {
        float* const to = sums + i * sums_step + j * lanes;
        Isa::store(to, Isa::add(is_first ? Isa::zero() : Isa::load(to), total[i][j]));
      }
    }
  }

  // The same for numbers at even positions, and then for those at odd ones.
  template <std::size_t rows, std::size_t panels>
  void add_numbers(const float* input, const float* panel, std::size_t count, bool is_first, float* sums) const {
    add_block<rows, panels>(input, panel, (count + 1) / 2, is_first, sums);
    add_block<rows, panels>(input + 1, panel + odd_part, count / 2, false, sums);
  }

  template <std::size_t rows>
  void add_row_block(const float* input, const float* panels, std::size_t count, bool is_first, float* sums) const {
    // Few rows need several panels at once, since a sum waits for its last addition.
    constexpr std::size_t most_panels = most_rows / rows >= 4 ? 4 : (most_rows / rows >= 2 ? 2 : 1);
    std::size_t i = 0;
    for (; i + most_panels <= part.panels; i += most_panels) {
      add_numbers<rows, most_panels>(input, panels + i * most_numbers * width, count, is_first, sums + i * width);
    }
    for (; i < part.panels; ++i) {
      add_numbers<rows, 1>(input, panels + i * most_numbers * width, count, is_first, sums + i * width);
    }
  }

  template <std::size_t rows = most_rows>
  void add_rows(std::size_t wanted, const float* input, const float* panels, std::size_t count, bool is_first,
                float* sums) const {
    if constexpr (rows > 1) {
      if (wanted < rows) return add_rows<rows - 1>(wanted, input, panels, count, is_first, sums);
    }
    add_row_block<rows>(input, panels, count, is_first, sums);
  }

  // ---- few rows ----

  // Computes two times `lanes` columns for a few rows, which are adjacent and in float32. The numbers of these columns
  // are brought together in registers. That takes less time than a panel, and reads the weight in long stretches.
  template <std::size_t rows>
  void multiply_columns(const float* input, std::size_t column, float* sums) const {
    const Columns columns[2] = {{product, column}, {product, column + lanes}};
    Floats total[2][rows];
    clear(total);
    for (std::size_t begin = 0; begin < product.inner; begin += most_numbers) {
      const std::size_t end = most_numbers < product.inner - begin ? begin + most_numbers : product.inner;
      Floats even[2][rows];
      Floats odd[2][rows];
      clear(even);
      clear(odd);
      for (std::size_t k = begin; k < end; k += line) {
        // A line of the processor's caches is read whole, for one column after the other: if a column's length is a
        // power of two, the caches hold few of such lines together.
#pragma GCC unroll 2
        for (std::size_t half = 0; half < 2; ++half) {
          // The lines that come next, which are those of other columns at the end.
          const std::size_t ahead = k + lines_ahead * line;
          if (ahead < product.inner) {
            columns[half].prefetch(ahead);
          } else if (product.inner > lines_ahead * line) {
            columns[half].prefetch(ahead - product.inner, width * product.weight_step);
          }
          for (std::size_t in_line = k; in_line < k + line && in_line < end; in_line += 2 * lanes) {
            add_square<rows>(input + in_line, columns[half], in_line, end - in_line, even[half], odd[half]);
          }
        }
      }
      for (std::size_t half = 0; half < 2; ++half) {
        for (std::size_t row = 0; row < rows; ++row) {
          total[half][row] = Isa::add(Isa::add(total[half][row], even[half][row]), odd[half][row]);
        }
      }
    }
    for (std::size_t half = 0; half < 2; ++half) {
      for (std::size_t row = 0; row < rows; ++row) {
        Isa::store(sums + row * part.columns_of_panels() + half * lanes, total[half][row]);
      }
    }
  }

  template <std::size_t rows>
  static void clear(Floats (&sums)[2][rows]) {
    for (auto& of_half : sums) {
      for (Floats& one : of_half) one = Isa::zero();
    }
  }

  // Adds the products of `count` numbers, or as many as a register holds, of `lanes` columns.
  template <std::size_t rows>
  [[gnu::always_inline]] void add_square(const float* input, const Columns& columns, std::size_t k, std::size_t count,
                                         Floats (&even)[rows], Floats (&odd)[rows]) const {
    Words square[lanes];
    load_square(columns, k, count, square);
    const auto add = [&](std::size_t i, Floats values, Floats(&sums)[rows]) {
#pragma GCC unroll 8
      for (std::size_t row = 0; row < rows; ++row) {
        sums[row] = Isa::add_product(Isa::in_all_lanes(input[row * product.inner + i]), values, sums[row]);
      }
    };
    if (count >= 2 * lanes) {
#pragma GCC unroll 16
      for (std::size_t i = 0; i < lanes; ++i) {
        add(2 * i, Widen::even(square[i]), even);
        add(2 * i + 1, Widen::odd(square[i]), odd);
      }
      return;
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (i % 2 == 0) {
        add(i, Widen::even(square[i / 2]), even);
      } else {
        add(i, Widen::odd(square[i / 2]), odd);
      }
    }
  }

  template <std::size_t rows = Isa::few_rows>
  void multiply_few_rows() const {
    if constexpr (rows > 1) {
      if (part.rows < rows) return multiply_few_rows<rows - 1>();
    }
    float* const sums = part.scratch;
    float* const input = sums + rows * part.columns_of_panels();
    for (std::size_t row = 0; row < rows; ++row) {
      part.widen(at(product.input, (part.row + row) * product.input_step), input + row * product.inner, product.inner);
    }
    for (std::size_t done = 0; done < part.columns_of_panels(); done += width) {
      multiply_columns<rows>(input, part.column + done, sums + done);
    }
    finish(sums, input);
  }

  // ---- all of it ----

  void multiply() const {
    if (part.rows <= Isa::few_rows && !product.inner_first) return multiply_few_rows();
    float* const panels = part.scratch;
    float* const input = panels + part.panels * width * most_numbers;
    float* const sums = input + most_rows * most_numbers;
    for (std::size_t begin = 0; begin < product.inner; begin += most_numbers) {
      const std::size_t count = most_numbers < product.inner - begin ? most_numbers : product.inner - begin;
      if (product.inner_first) arrange_rows(begin, count, panels);
      for (std::size_t i = 0; i < part.panels && !product.inner_first; ++i) {
        arrange(part.column + i * width, begin, count, panels + i * most_numbers * width);
      }
      const std::size_t shares = (part.rows + most_rows - 1) / most_rows;
      for (std::size_t i = 0; i < shares; ++i) {
        const std::size_t row = part.rows * i / shares;
        const std::size_t rows = part.rows * (i + 1) / shares - row;
        for (std::size_t j = 0; j < rows; ++j) {
          part.widen(at(product.input, (part.row + row + j) * product.input_step + begin), input + j * most_numbers,
                     count);
        }
        add_rows(rows, input, panels, count, begin == 0, sums + row * part.columns_of_panels());
      }
    }
    finish(sums, input);
  }

  // Adds the bias, rounds and writes the result.
  void finish(float* sums, float* bias) const {
    const std::size_t all = part.panels * width;
    const std::size_t there = product.outer - part.column;
    const std::size_t columns = there < all ? there : all;
    if (product.bias != nullptr && product.float32_result) {
      __builtin_memcpy(bias, static_cast<const float*>(product.bias) + part.column, columns * sizeof *bias);
    } else if (product.bias != nullptr) {
      part.widen(at(product.bias, part.column), bias, columns);
    }
    for (std::size_t i = 0; i < part.rows; ++i, sums += all) {
      for (std::size_t j = 0; product.bias != nullptr && j < columns; ++j) sums[j] += bias[j];
      const std::size_t to = (part.row + i) * product.result_step + part.column;
      if (product.float32_result) {
        __builtin_memcpy(static_cast<float*>(product.result) + to, sums, columns * sizeof *sums);
      } else {
        part.narrow(sums, static_cast<std::uint16_t*>(product.result) + to, columns);
      }
    }
  }
};

template <class Isa>
void multiply_fused(const Product& product, const FusedPart& part) noexcept {
  if (product.kind == Float::bf16) {
    FusedProduct<Isa, typename Isa::Bf16>{product, part}.multiply();
  } else {
    FusedProduct<Isa, typename Isa::F16>{product, part}.multiply();
  }
}

template <class Isa>
constexpr FusedKernels fused_kernels_of() {
  return {.panel_width = 2 * Isa::lanes,
          .most_rows = Isa::most_sums / 2,
          .few_rows = Isa::few_rows,
          .multiply = multiply_fused<Isa>};
}

}  // namespace
}  // namespace habana_mp::kernels

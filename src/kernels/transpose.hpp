// Transposes blocks of 2- or 4-byte elements with vectors of 16 bytes, which every supported processor has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

namespace habana_mp::kernels {

template <class T>
struct Vector {
  static constexpr std::size_t lanes = 16 / sizeof(T);
  using Type __attribute__((vector_size(16))) = T;

  template <std::size_t... at>
  static Type interleave_low(Type a, Type b, std::index_sequence<at...> /*lanes*/) {
    return Type{(at % 2 != 0 ? b[at / 2] : a[at / 2])...};
  }
  template <std::size_t... at>
  static Type interleave_high(Type a, Type b, std::index_sequence<at...> /*lanes*/) {
    return Type{(at % 2 != 0 ? b[lanes / 2 + at / 2] : a[lanes / 2 + at / 2])...};
  }
};

// Transposes a square with as many rows as a vector has lanes. Each round interleaves the two halves of the rows, like
// a card shuffle. After as many rounds as an index has bits, the rows have become columns.
template <class T>
void transpose_square(const unsigned char* source, std::ptrdiff_t source_stride, unsigned char* target,
                      std::ptrdiff_t target_stride) {
  using V = Vector<T>;
  constexpr std::size_t lanes = V::lanes;
  constexpr auto each = std::make_index_sequence<lanes>{};
  typename V::Type rows[lanes];
  for (std::size_t i = 0; i < lanes; ++i) {
    std::memcpy(&rows[i], source + static_cast<std::ptrdiff_t>(i) * source_stride, 16);
  }
  for (std::size_t round = 1; round < lanes; round *= 2) {
    typename V::Type next[lanes];
    for (std::size_t i = 0; i < lanes / 2; ++i) {
      next[2 * i] = V::interleave_low(rows[i], rows[i + lanes / 2], each);
      next[2 * i + 1] = V::interleave_high(rows[i], rows[i + lanes / 2], each);
    }
    std::memcpy(rows, next, sizeof rows);
  }
  for (std::size_t i = 0; i < lanes; ++i) {
    std::memcpy(target + static_cast<std::ptrdiff_t>(i) * target_stride, &rows[i], 16);
  }
}

// Transposes `rows` rows of `columns` adjacent elements. In the target the elements of a column are adjacent, and those
// of a row are `target_stride` bytes apart.
template <class T>
void transpose(const unsigned char* source, std::ptrdiff_t source_stride, unsigned char* target,
               std::ptrdiff_t target_stride, std::size_t rows, std::size_t columns) {
  constexpr std::size_t side = Vector<T>::lanes;
  const auto at = [](std::size_t index, std::ptrdiff_t stride) { return static_cast<std::ptrdiff_t>(index) * stride; };
  const std::size_t whole_rows = rows / side * side;
  const std::size_t whole_columns = columns / side * side;
  const auto one_by_one = [&](std::size_t row, std::size_t from_column) {
    for (std::size_t column = from_column; column < columns; ++column) {
      std::memcpy(target + at(column, target_stride) + row * sizeof(T),
                  source + at(row, source_stride) + column * sizeof(T), sizeof(T));
    }
  };
  for (std::size_t column = 0; column < whole_columns; column += side) {
    for (std::size_t row = 0; row < whole_rows; row += side) {
      transpose_square<T>(source + at(row, source_stride) + column * sizeof(T), source_stride,
                          target + at(column, target_stride) + row * sizeof(T), target_stride);
    }
  }
  for (std::size_t row = 0; row < rows; ++row) {
    one_by_one(row, row < whole_rows ? whole_columns : 0);
  }
}

}  // namespace habana_mp::kernels

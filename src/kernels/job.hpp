// The cast of one array, with any strides on both sides, in the form in which it runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/table.hpp"
#include "kernels/types.hpp"

namespace habana_mp::kernels {

// Strides are in bytes and may be negative; those of a source may be zero.
struct Axis {
  std::size_t extent;
  std::ptrdiff_t source_stride;
  std::ptrdiff_t target_stride;
};

class Job {
 public:
  // Casts contiguous elements.
  Job(const void* source, Float from, void* target, Float to, std::size_t count);

  // Casts elements at any strides: an element's offset is the sum of index times stride, in the source and in the
  // target.
  Job(const void* source, Float from, void* target, Float to, std::vector<Axis> axes);

  [[nodiscard]] std::size_t count() const { return count_; }

  // The work is divided into `units()` units of about `unit_bytes()` bytes, read and written. Any number of threads may
  // run any of them.
  [[nodiscard]] std::size_t units() const { return units_; }
  [[nodiscard]] std::size_t unit_bytes() const { return unit_bytes_; }
  void run(const Table& table, std::size_t first_unit, std::size_t end_unit) const noexcept;

 private:
  enum class Traversal : std::uint8_t {
    whole,       // contiguous on both sides
    rows,        // contiguous along the same axis
    transposed,  // contiguous along one axis of the source and along another one of the target
    scattered,   // none of these
  };

  void choose_traversal();
  void cut(std::size_t rows, std::size_t columns);

  const unsigned char* source_;
  unsigned char* target_;
  Float from_;
  Float to_;
  Traversal traversal_ = Traversal::whole;
  std::size_t count_ = 1;

  // A unit is a tile of two axes; `columns_` is the axis along which the target is written.
  Axis columns_{1, 0, 0};
  Axis rows_{1, 0, 0};
  std::vector<Axis> outer_;
  std::size_t tile_columns_ = 1;
  std::size_t tile_rows_ = 1;
  std::size_t units_ = 0;
  std::size_t unit_bytes_ = 1;
};

}  // namespace habana_mp::kernels

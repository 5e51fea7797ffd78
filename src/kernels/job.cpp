#include "kernels/job.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/transpose.hpp"

namespace habana_mp::kernels {
namespace {

// In elements. The size of a unit that is read and written contiguously. A multiple of all cache line and register
// sizes, so that every unit has the same alignment as the first.
constexpr std::size_t long_tile = std::size_t{1} << 13;
// The size of a tile that is transposed. Both sides and a buffer fit in the first-level cache, and rows fill cache
// lines.
constexpr std::size_t square_tile = std::size_t{1} << 12;
constexpr std::size_t square_side = 64;
constexpr std::size_t copied_side = 128;  // measured: without a buffer, longer runs in the target are faster
constexpr std::size_t gathered = 512;

std::ptrdiff_t at(std::size_t index, std::ptrdiff_t stride) { return static_cast<std::ptrdiff_t>(index) * stride; }

std::size_t divide_up(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

std::ptrdiff_t one_step(Float type) { return static_cast<std::ptrdiff_t>(size_of(type)); }

bool is_one_step(std::ptrdiff_t stride, Float type) { return stride == one_step(type); }

// Casts contiguous elements; copies them if both types are the same.
struct Stretch {
  Kernel kernel;
  std::size_t source_size;
  std::size_t size;

  void operator()(const unsigned char* source, unsigned char* target, std::size_t count) const noexcept {
    if (kernel != nullptr) {
      kernel(source, target, count);
    } else {
      std::memcpy(target, source, count * size);
    }
  }

  // Casts `lines.extent` runs of `count` elements each, in one go if the runs are adjacent.
  void each(Axis lines, const unsigned char* source, unsigned char* target, std::size_t count) const noexcept {
    if (lines.source_stride == at(count, static_cast<std::ptrdiff_t>(source_size)) &&
        lines.target_stride == at(count, static_cast<std::ptrdiff_t>(size))) {
      count *= lines.extent;
      lines.extent = 1;
    }
    for (std::size_t line = 0; line < lines.extent; ++line) {
      (*this)(source + at(line, lines.source_stride), target + at(line, lines.target_stride), count);
    }
  }
};

void transpose_sized(std::size_t size, const unsigned char* source, std::ptrdiff_t source_stride, unsigned char* target,
                     std::ptrdiff_t target_stride, std::size_t rows, std::size_t columns) noexcept {
  const auto transposer = size == 4 ? transpose<std::uint32_t> : transpose<std::uint16_t>;
  transposer(source, source_stride, target, target_stride, rows, columns);
}

template <class T>
void copy_apart(const unsigned char* source, std::ptrdiff_t source_stride, unsigned char* target,
                std::ptrdiff_t target_stride, std::size_t count) noexcept {
  constexpr std::ptrdiff_t step = sizeof(T);
  if (source_stride == 2 * step && target_stride == step) {  // constant strides allow vectorization
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(target + at(i, step), source + at(i, 2 * step), sizeof(T));
    }
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    std::memcpy(target + at(i, target_stride), source + at(i, source_stride), sizeof(T));
  }
}

void copy_apart_sized(std::size_t size, const unsigned char* source, std::ptrdiff_t source_stride,
                      unsigned char* target, std::ptrdiff_t target_stride, std::size_t count) noexcept {
  const auto copier = size == 4 ? copy_apart<std::uint32_t> : copy_apart<std::uint16_t>;
  copier(source, source_stride, target, target_stride, count);
}

// A tile, with the functions that cast it.
struct Tile {
  Stretch stretch;
  Float from;
  Float to;
  const unsigned char* source;
  unsigned char* target;
  Axis rows;     // the extent is that of this tile
  Axis columns;  // likewise

  void run_rows() const noexcept { stretch.each(rows, source, target, columns.extent); }

  // The source's elements are adjacent along the rows' axis. Transposes 2-byte elements if there is a choice.
  void run_transposed() const noexcept {
    const std::size_t size = size_of(to);
    if (from == to) {
      transpose_sized(size, source, columns.source_stride, target, rows.target_stride, columns.extent, rows.extent);
      return;
    }
    alignas(64) unsigned char buffer[square_tile * 2];
    if (size == 2) {
      const auto pitch = static_cast<std::ptrdiff_t>(rows.extent * size);
      stretch.each({columns.extent, columns.source_stride, pitch}, source, buffer, rows.extent);
      transpose_sized(size, buffer, pitch, target, rows.target_stride, columns.extent, rows.extent);
    } else {
      const auto pitch = static_cast<std::ptrdiff_t>(columns.extent * size_of(from));
      transpose_sized(size_of(from), source, columns.source_stride, buffer, pitch, columns.extent, rows.extent);
      stretch.each({rows.extent, pitch, rows.target_stride}, buffer, target, columns.extent);
    }
  }

  void run_scattered() const noexcept {
    alignas(64) unsigned char in[gathered * 4];
    alignas(64) unsigned char out[gathered * 4];
    const bool gathers = !is_one_step(columns.source_stride, from);
    const bool scatters = !is_one_step(columns.target_stride, to);
    for (std::size_t row = 0; row < rows.extent; ++row) {
      for (std::size_t column = 0; column < columns.extent; column += gathered) {
        const std::size_t count = std::min(gathered, columns.extent - column);
        const unsigned char* near = source + at(row, rows.source_stride) + at(column, columns.source_stride);
        unsigned char* const far = target + at(row, rows.target_stride) + at(column, columns.target_stride);
        if (gathers) {
          copy_apart_sized(size_of(from), near, columns.source_stride, in, one_step(from), count);
          near = in;
        }
        stretch(near, scatters ? out : far, count);
        if (scatters) {
          copy_apart_sized(size_of(to), out, one_step(to), far, columns.target_stride, count);
        }
      }
    }
  }
};

}  // namespace

Job::Job(const void* source, Float from, void* target, Float to, std::size_t count)
    : source_(static_cast<const unsigned char*>(source)),
      target_(static_cast<unsigned char*>(target)),
      from_(from),
      to_(to),
      count_(count) {
  columns_ = {count, one_step(from), one_step(to)};
  cut(1, long_tile);
}

Job::Job(const void* source, Float from, void* target, Float to, std::vector<Axis> axes)
    : source_(static_cast<const unsigned char*>(source)),
      target_(static_cast<unsigned char*>(target)),
      from_(from),
      to_(to),
      outer_(std::move(axes)) {
  for (const Axis& axis : outer_) {
    count_ *= axis.extent;
  }
  if (count_ == 0) return;
  std::erase_if(outer_, [](const Axis& axis) { return axis.extent == 1; });
  for (Axis& axis : outer_) {
    if (axis.target_stride < 0) {  // walk it from its other end
      source_ += at(axis.extent - 1, axis.source_stride);
      target_ += at(axis.extent - 1, axis.target_stride);
      axis.source_stride = -axis.source_stride;
      axis.target_stride = -axis.target_stride;
    }
  }
  std::stable_sort(outer_.begin(), outer_.end(),
                   [](const Axis& a, const Axis& b) { return a.target_stride > b.target_stride; });
  // Merge an axis with the next outer one if a step of the outer one is the whole length of the inner one.
  std::vector<Axis> merged;
  for (const Axis& axis : outer_) {
    if (!merged.empty() && merged.back().source_stride == at(axis.extent, axis.source_stride) &&
        merged.back().target_stride == at(axis.extent, axis.target_stride)) {
      merged.back() = {merged.back().extent * axis.extent, axis.source_stride, axis.target_stride};
    } else {
      merged.push_back(axis);
    }
  }
  outer_ = std::move(merged);
  choose_traversal();
}

void Job::choose_traversal() {
  columns_ = {1, one_step(from_), one_step(to_)};
  if (!outer_.empty()) {
    columns_ = outer_.back();
    outer_.pop_back();
  }
  const bool target_in_steps = is_one_step(columns_.target_stride, to_);
  auto rows = outer_.empty() ? outer_.end() : outer_.end() - 1;
  if (target_in_steps && is_one_step(columns_.source_stride, from_)) {
    traversal_ = outer_.empty() ? Traversal::whole : Traversal::rows;
  } else {
    const auto source_in_steps = std::find_if(
        outer_.begin(), outer_.end(), [this](const Axis& axis) { return is_one_step(axis.source_stride, from_); });
    traversal_ = Traversal::scattered;
    if (target_in_steps && source_in_steps != outer_.end()) {
      traversal_ = Traversal::transposed;
      rows = source_in_steps;
    }
  }
  if (rows != outer_.end()) {
    rows_ = *rows;
    outer_.erase(rows);
  }

  if (traversal_ == Traversal::transposed) {
    std::size_t columns = std::min(columns_.extent, from_ == to_ ? copied_side : square_side);
    const std::size_t tile_rows = std::min(rows_.extent, square_tile / columns);
    columns = std::min(columns_.extent, square_tile / tile_rows);
    cut(tile_rows, columns);
  } else {
    const std::size_t columns = std::min(columns_.extent, long_tile);
    cut(std::min(rows_.extent, long_tile / columns), columns);
  }
}

void Job::cut(std::size_t rows, std::size_t columns) {
  tile_rows_ = rows;
  tile_columns_ = columns;
  units_ = divide_up(rows_.extent, rows) * divide_up(columns_.extent, columns);
  for (const Axis& axis : outer_) {
    units_ *= axis.extent;
  }
  unit_bytes_ = rows * columns * (size_of(from_) + size_of(to_));
}

void Job::run(const Table& table, std::size_t first_unit, std::size_t end_unit) const noexcept {
  const Stretch stretch{table.convert[static_cast<std::size_t>(from_)][static_cast<std::size_t>(to_)], size_of(from_),
                        size_of(to_)};
  if (traversal_ == Traversal::whole) {
    const std::size_t begins = first_unit * tile_columns_;
    const std::size_t ends = std::min(count_, end_unit * tile_columns_);
    if (begins < ends) {
      stretch(source_ + begins * size_of(from_), target_ + begins * size_of(to_), ends - begins);
    }
    return;
  }
  const std::size_t column_tiles = divide_up(columns_.extent, tile_columns_);
  const std::size_t row_tiles = divide_up(rows_.extent, tile_rows_);
  for (std::size_t unit = first_unit; unit < end_unit; ++unit) {
    const std::size_t column = unit % column_tiles * tile_columns_;
    std::size_t rest = unit / column_tiles;
    const std::size_t row = rest % row_tiles * tile_rows_;
    rest /= row_tiles;
    std::ptrdiff_t source_at = at(row, rows_.source_stride) + at(column, columns_.source_stride);
    std::ptrdiff_t target_at = at(row, rows_.target_stride) + at(column, columns_.target_stride);
    for (auto axis = outer_.rbegin(); axis != outer_.rend(); ++axis) {
      source_at += at(rest % axis->extent, axis->source_stride);
      target_at += at(rest % axis->extent, axis->target_stride);
      rest /= axis->extent;
    }
    Tile tile{stretch, from_, to_, source_ + source_at, target_ + target_at, rows_, columns_};
    tile.rows.extent = std::min(tile_rows_, rows_.extent - row);
    tile.columns.extent = std::min(tile_columns_, columns_.extent - column);
    if (traversal_ == Traversal::rows) {
      tile.run_rows();
    } else if (traversal_ == Traversal::transposed) {
      tile.run_transposed();
    } else {
      tile.run_scattered();
    }
  }
}

}  // namespace habana_mp::kernels

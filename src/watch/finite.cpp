#include "watch/finite.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "host/modes.hpp"
#include "host/tensors.hpp"
#include "host/view.hpp"
#include "kernels/bits.hpp"
#include "kernels/magnitude.hpp"

namespace habana_mp::watch {

namespace {

using kernels::Float;

// The most values of a tensor that a sampled call reads, in blocks at equal distances.
constexpr std::int64_t most_in_sample = std::int64_t{1} << 15;
constexpr std::int64_t block = std::int64_t{1} << 11;
constexpr std::size_t most_dimensions = 16;

// The values of a tensor as rows: `length` values at a distance of `stride`, and the sizes and strides around them.
struct Rows {
  const char* data = nullptr;
  std::int64_t size = 0;  // of a value, in bytes
  std::int64_t length = 1;
  std::int64_t stride = 1;
  std::int32_t outer = 0;
  std::array<std::int64_t, most_dimensions> sizes{};
  std::array<std::int64_t, most_dimensions> strides{};
};

// Sorts the dimensions by stride, and joins those that are adjacent in memory.
bool find_rows(const DLTensor& view, std::int64_t size, Rows& rows) noexcept {
  if (static_cast<std::size_t>(view.ndim) > most_dimensions) return false;
  rows.data = static_cast<const char*>(view.data) + view.byte_offset;
  rows.size = size;
  std::array<std::int32_t, most_dimensions> order{};
  std::int32_t count = 0;
  for (std::int32_t i = 0; i < view.ndim; ++i) {
    // Values that are repeated are read once.
    if (view.shape[i] != 1 && view.strides[i] != 0) order[static_cast<std::size_t>(count++)] = i;
  }
  std::sort(order.begin(), order.begin() + count,
            [&](std::int32_t a, std::int32_t b) { return view.strides[a] < view.strides[b]; });
  for (std::int32_t i = 0; i < count; ++i) {
    const std::int32_t dimension = order[static_cast<std::size_t>(i)];
    const std::int64_t length = view.shape[dimension];
    const std::int64_t stride = view.strides[dimension];
    if (i == 0) {
      rows.length = length;
      rows.stride = stride;
    } else if (rows.outer == 0 && stride == rows.length * rows.stride) {
      rows.length *= length;
    } else {
      rows.sizes[static_cast<std::size_t>(rows.outer)] = length;
      rows.strides[static_cast<std::size_t>(rows.outer++)] = stride;
    }
  }
  return true;
}

// Lets the view of a tensor of complex numbers show their real and imaginary parts: two numbers that are neighbours.
struct Parts {
  std::array<std::int64_t, most_dimensions> sizes{};
  std::array<std::int64_t, most_dimensions> strides{};

  // False for numbers that nothing here reads.
  bool take(DLTensor& view) noexcept {
    if (view.dtype.code != kDLComplex) return true;
    const auto last = static_cast<std::size_t>(view.ndim);
    if (last >= most_dimensions || view.dtype.bits < 64) return false;
    std::copy_n(view.shape, last, sizes.begin());
    std::transform(view.strides, view.strides + last, strides.begin(), [](std::int64_t stride) { return 2 * stride; });
    sizes[last] = 2;
    strides[last] = 1;
    view.shape = sizes.data();
    view.strides = strides.data();
    view.ndim += 1;
    view.dtype.bits /= 2;
    return true;
  }
};

// float64 has no kernel: its calls are rare in mixed precision. Returns bits as those of float32, whose numbers,
// infinities and NaN are in the same order.
std::uint32_t largest_of_double(const char* values, std::int64_t stride, std::int64_t count) noexcept {
  std::uint64_t most = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, values + i * stride * 8, sizeof bits);
    most = std::max(most, bits & ~(std::uint64_t{1} << 63U));
  }
  constexpr std::uint64_t infinity = std::uint64_t{0x7ff} << 52U;
  const std::uint32_t of_f32 = kernels::infinity_of(Float::f32);
  return most < infinity ? 0 : most == infinity ? of_f32 : of_f32 + 1;
}

template <typename Bits>
std::uint32_t largest_in_steps(const char* values, std::int64_t stride, std::int64_t count) noexcept {
  constexpr auto without_sign = static_cast<Bits>(std::numeric_limits<Bits>::max() >> 1U);
  Bits most = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    Bits bits = 0;
    std::memcpy(&bits, values + i * stride * static_cast<std::int64_t>(sizeof bits), sizeof bits);
    most = std::max(most, static_cast<Bits>(bits & without_sign));
  }
  return most;
}

std::uint32_t largest_in_row(const char* values, Kind kind, std::int64_t stride, std::int64_t count) noexcept {
  if (kind == Kind::wide) return largest_of_double(values, stride, count);
  const Float type = kind == Kind::f32 ? Float::f32 : kind == Kind::bf16 ? Float::bf16 : Float::f16;
  if (stride == 1) return kernels::largest_magnitude(values, type, static_cast<std::size_t>(count));
  return type == Float::f32 ? largest_in_steps<std::uint32_t>(values, stride, count)
                            : largest_in_steps<std::uint16_t>(values, stride, count);
}

std::uint32_t largest_in_rows(const Rows& rows, Kind kind, bool whole) noexcept {
  std::int64_t left = whole ? INT64_MAX : most_in_sample;
  if (rows.outer == 0 && rows.length > left) {
    std::uint32_t most = 0;
    const std::int64_t blocks = most_in_sample / block;
    for (std::int64_t i = 0; i < blocks; ++i) {
      const std::int64_t begin = i * (rows.length - block) / (blocks - 1);
      most = std::max(most, largest_in_row(rows.data + begin * rows.stride * rows.size, kind, rows.stride, block));
    }
    return most;
  }
  std::uint32_t most = 0;
  const char* row = rows.data;
  std::array<std::int64_t, most_dimensions> at{};
  for (; left > 0;) {
    const std::int64_t count = std::min(rows.length, left);
    most = std::max(most, largest_in_row(row, kind, rows.stride, count));
    left -= count;
    std::int32_t i = 0;
    for (; i < rows.outer; ++i) {
      const auto dimension = static_cast<std::size_t>(i);
      const std::int64_t stride = rows.strides[dimension] * rows.size;
      row += stride;
      if (++at[dimension] < rows.sizes[dimension]) break;
      row -= stride * rows.sizes[dimension];
      at[dimension] = 0;
    }
    if (i == rows.outer) break;
  }
  return most;
}

float value_of(std::uint32_t bits, Kind kind) noexcept {
  if (kind == Kind::f32) return std::bit_cast<float>(bits);
  const auto half = static_cast<std::uint16_t>(bits);
  return std::bit_cast<float>(kind == Kind::bf16 ? kernels::f32_of_bf16(half) : kernels::f32_of_f16(half));
}

}  // namespace

Magnitude magnitude_of(PyObject* tensor, bool whole) noexcept {
  const Kind kind = host::kind_of(tensor);
  Magnitude found{.kind = kind};
  if (!is_floating(kind) && kind != Kind::wide) return found;
  DLTensor view{};
  if (!host::is_plain_tensor(tensor) || !host::can_view() || !host::view_of(tensor, view)) {
    found.state = Finite::unknown;
    return found;
  }
  if (host::count_in(view) == 0) return found;
  Parts parts;
  Rows rows;
  if (view.device.device_type != kDLCPU || view.data == nullptr || !parts.take(view) ||
      !find_rows(view, view.dtype.bits / 8, rows)) {
    found.state = Finite::unknown;
    return found;
  }
  const Kind read_as = kind == Kind::wide && view.dtype.bits == 32 ? Kind::f32 : kind;
  const std::uint32_t largest = largest_in_rows(rows, read_as, whole);
  const std::uint32_t infinity = kernels::infinity_of(kind == Kind::bf16  ? Float::bf16
                                                      : kind == Kind::f16 ? Float::f16
                                                                          : Float::f32);
  if (largest < infinity) {
    if (kind != Kind::wide) found.largest = value_of(largest, kind);
  } else {
    found.state = largest == infinity ? Finite::infinities : Finite::nans;
  }
  return found;
}

}  // namespace habana_mp::watch

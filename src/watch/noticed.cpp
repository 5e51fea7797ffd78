#include "watch/noticed.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "host/tensors.hpp"
#include "host/view.hpp"
#include "kernels/bits.hpp"

namespace habana_mp::watch {

namespace {

// At most this many values of a tensor are examined: positions and time steps are few.
constexpr std::int64_t most_values = std::int64_t{1} << 16;
// A number beyond this is a mask, not a count.
constexpr double largest_that_counts = 1e9;

float read(const char* value, Kind kind) {
  if (kind == Kind::f32) {
    float found = 0;
    std::memcpy(&found, value, sizeof found);
    return found;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, value, sizeof bits);
  return std::bit_cast<float>(kind == Kind::bf16 ? kernels::f32_of_bf16(bits) : kernels::f32_of_f16(bits));
}

// A plain tensor on the CPU whose values can be read.
struct Readable {
  DLTensor view{};
  Kind kind = Kind::other;

  bool open(PyObject* tensor) noexcept {
    kind = host::kind_of(tensor);
    return (kind == Kind::f32 || is_lower(kind)) && host::can_view() && host::view_on_cpu(tensor, view) &&
           host::is_of_kind(view, kind);
  }

  [[nodiscard]] std::int64_t size() const noexcept { return kind == Kind::f32 ? 4 : 2; }

  // Returns the value at a position in the order of the last index.
  [[nodiscard]] float at(std::int64_t position) const noexcept {
    std::int64_t offset = 0;
    for (std::int32_t i = view.ndim - 1; i >= 0; --i) {
      offset += position % view.shape[i] * view.strides[i];
      position /= view.shape[i];
    }
    return read(static_cast<const char*>(view.data) + view.byte_offset + offset * size(), kind);
  }
};

// Calls `visit` with the values of a plain tensor on the CPU until it returns false. Returns false if the values cannot
// be read.
template <typename Visit>
bool for_each_value(PyObject* tensor, const Visit& visit) noexcept {
  Readable readable;
  constexpr std::size_t most_dimensions = 16;
  if (!readable.open(tensor) || static_cast<std::size_t>(readable.view.ndim) > most_dimensions) return false;
  const DLTensor& view = readable.view;
  const std::int64_t size = readable.size();
  const std::int64_t count = std::min(host::count_in(view), most_values);
  const char* value = static_cast<const char*>(view.data) + view.byte_offset;
  std::array<std::int64_t, most_dimensions> at{};
  for (std::int64_t done = 0; done < count; ++done) {
    if (!visit(read(value, readable.kind))) return true;
    for (std::int32_t i = view.ndim - 1; i >= 0; --i) {
      const std::int64_t stride = view.strides[i] * size;
      value += stride;
      if (++at[static_cast<std::size_t>(i)] < view.shape[i]) break;
      value -= stride * view.shape[i];
      at[static_cast<std::size_t>(i)] = 0;
    }
  }
  return true;
}

// Returns the largest value if all values are counts and the lower precision rounds some of them, else 0.
double largest_count(PyObject* tensor, Kind kind, Kind lower) noexcept {
  const double held = lower == Kind::bf16 ? 256 : 2048;
  const std::uint32_t lost_bits = lower == Kind::bf16 ? 0xFFFFU : 0x1FFFU;
  double largest = 0;
  bool counts = true;
  bool is_rounded = kind != Kind::f32;  // values in lower precision are rounded already
  for_each_value(tensor, [&](float value) {
    counts = value >= 0 && value < largest_that_counts && std::trunc(value) == value;
    if (!counts) return false;
    largest = std::max(largest, static_cast<double>(value));
    if (value > held && (std::bit_cast<std::uint32_t>(value) & lost_bits) != 0) is_rounded = true;
    return true;
  });
  return counts && is_rounded && largest > held ? largest : 0;
}

double largest_size(PyObject* tensor) noexcept {
  double largest = 0;
  for_each_value(tensor, [&](float value) {
    if (std::isfinite(value)) largest = std::max(largest, std::fabs(static_cast<double>(value)));
    return true;
  });
  return largest;
}

bool is_float64(PyObject* tensor) noexcept {
  DLTensor view{};
  return host::can_view() && host::view_of(tensor, view) && view.dtype.code == kDLFloat && view.dtype.bits == 64;
}

bool has_sizes_of(PyObject* tensor, PyObject* other) noexcept {
  DLTensor view{};
  DLTensor beside{};
  if (!host::is_plain_tensor(tensor) || !host::is_plain_tensor(other) || !host::can_view() ||
      !host::view_of(tensor, view) || !host::view_of(other, beside))
    return false;
  return std::equal(view.shape, view.shape + view.ndim, beside.shape, beside.shape + beside.ndim);
}

// True if much of most values of a sum may be the rounding of a term; or if little is left of some, and all others have
// one sign: it is a distance, not a sum in which values cancel by chance.
bool cancels(PyObject* term, PyObject* sum) noexcept {
  constexpr std::int64_t most_samples = 4096;
  constexpr float little = 1.0F / 64;
  constexpr float very_little = 1.0F / 128;  // a quarter of it, or more, may be the rounding of a term in bfloat16
  constexpr std::int64_t fewest = 64;        // values, of which one cancelled
  Readable before;
  Readable after;
  if (!has_sizes_of(term, sum) || !before.open(term) || !after.open(sum)) return false;
  const std::int64_t count = host::count_in(after.view);
  const std::int64_t step = std::max<std::int64_t>(1, count / most_samples);
  std::int64_t cancelled = 0;
  std::int64_t mostly_rounding = 0;
  std::int64_t positive = 0;
  std::int64_t negative = 0;
  for (std::int64_t position = 0; position < count; position += step) {
    const float value = after.at(position);
    if (value == 0) continue;  // exactly the same number was subtracted, as in `scores - scores.max()`
    const float size = std::fabs(before.at(position));
    if (std::fabs(value) < little * size) {
      ++cancelled;
      if (std::fabs(value) < very_little * size) ++mostly_rounding;
    } else {
      ++(value > 0 ? positive : negative);
    }
  }
  const std::int64_t examined = (count + step - 1) / step;
  if (examined < fewest || cancelled * fewest < examined) return false;
  return 2 * mostly_rounding > cancelled + positive + negative || (positive == 0) != (negative == 0);
}

// True if the other term is a diagonal that the rounding of this one, a symmetric matrix in lower precision, exceeds.
bool is_lost_ridge(PyObject* term, PyObject* other) noexcept {
  Readable matrix;
  Readable ridge;
  if (!is_lower(host::kind_of(term)) || !matrix.open(term) || !ridge.open(other)) return false;
  const auto width = [](const Readable& one) {
    const std::int64_t* const last = one.view.shape + one.view.ndim;
    return one.view.ndim < 2 || last[-1] != last[-2] ? 0 : last[-1];
  };
  const std::int64_t size = width(ridge);
  if (size < 2 || width(matrix) != size || host::count_in(matrix.view) == 0) return false;
  const float digits = matrix.kind == Kind::bf16 ? 256 : 2048;
  std::int64_t lost = 0;
  for (std::int64_t i = 0; i < size; ++i) {  // of the first matrix of several
    const std::int64_t position = i * size + i;
    const float value = ridge.at(position);
    const std::int64_t next = (i + 1) % size;
    if (value == 0 || ridge.at(i * size + next) != 0) return false;
    if (matrix.at(i * size + next) != matrix.at(next * size + i)) return false;
    if (digits * std::fabs(value) < std::fabs(matrix.at(position))) ++lost;
  }
  return 2 * lost >= size;
}

void notice_statistics(Record& record, PyObject* const* arguments, Py_ssize_t count) noexcept {
  const Py_ssize_t end = std::min(count, statistics_from + statistics_count);
  for (Py_ssize_t i = statistics_from; i < end; ++i) {
    if (!is_lower(host::kind_of(arguments[i]))) continue;
    ++record.noticed.in_lower_statistics;
    return;
  }
}

// True if what is left of a term in the sum may be its rounding.
bool is_spoiled(PyObject* term, PyObject* other, PyObject* sum) noexcept {
  if (!host::is_exact_tensor(term)) return false;
  if (is_lower(host::kind_of(term))) {
    // If the other term is in lower precision too, it may be made of this one, unless it is known how it was made.
    const bool may_be_related = host::is_exact_tensor(other) && is_lower(host::kind_of(other)) && !maker_of(other);
    return !may_be_related && cancels(term, sum);
  }
  const Record* const maker = maker_of(term);  // in float32: perhaps a sum with a term in lower precision
  return maker != nullptr && maker->sensitivity == Sensitivity::sum && cancels(term, sum);
}

bool is_next_to_one(PyObject* number) noexcept {
  return PyFloat_Check(number) && PyFloat_AS_DOUBLE(number) >= 0.9 && PyFloat_AS_DOUBLE(number) < 1;
}

}  // namespace

void notice_input(Record& record, PyObject* tensor, Kind wanted) noexcept {
  Noticed& noticed = record.noticed;
  const Kind kind = host::kind_of(tensor);
  if (kind == Kind::f32 && is_lower(wanted)) {
    noticed.largest_count = std::max(noticed.largest_count, largest_count(tensor, kind, wanted));
  } else if (is_lower(kind) && record.sensitivity == Sensitivity::count) {
    noticed.largest_count = std::max(noticed.largest_count, largest_count(tensor, kind, kind));
  } else if (is_lower(kind) && record.sensitivity == Sensitivity::angle) {
    noticed.largest_angle = std::max(noticed.largest_angle, largest_size(tensor));
  } else if (kind == Kind::wide && is_float64(tensor)) {
    ++noticed.with_float64;
  }
}

void notice_call(Record& record, PyObject* const* arguments, Py_ssize_t count, PyObject* result) noexcept {
  if (record.sensitivity == Sensitivity::statistics) {
    notice_statistics(record, arguments, count);
  }
  if (count != 2 || result == nullptr) return;
  PyObject* const first = arguments[0];
  PyObject* const second = arguments[1];
  if (record.sensitivity == Sensitivity::decay && (is_next_to_one(first) || is_next_to_one(second))) {
    ++record.noticed.decays;
  }
  if (record.sensitivity == Sensitivity::sum &&
      (is_spoiled(first, second, result) || is_spoiled(second, first, result))) {
    ++record.noticed.cancelled;
  }
  if (record.sensitivity == Sensitivity::sum && (is_lost_ridge(first, second) || is_lost_ridge(second, first))) {
    ++record.noticed.lost_ridges;
  }
}

void notice_loss(PyObject* tensor) noexcept {
  if (!is_lower(host::kind_of(tensor)) || host::count_elements(tensor) != 1) return;
  if (Record* const maker = maker_of(tensor)) ++maker->noticed.losses;
}

void notice_carried(PyObject* tensor, PyObject* former) noexcept {
  if (tensor == former || !has_sizes_of(tensor, former)) return;
  if (Record* const maker = maker_of(tensor)) ++maker->noticed.carried;
}

}  // namespace habana_mp::watch

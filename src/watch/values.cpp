#include "watch/values.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "host/tensors.hpp"
#include "host/view.hpp"
#include "kernels/bits.hpp"
#include "kernels/magnitude.hpp"

namespace habana_mp::watch {

namespace {

// At most this many values of a tensor are examined: positions and time steps are few.
constexpr std::int64_t most_values = std::int64_t{1} << 16;
// A number beyond this is a mask, not a count.
constexpr double largest_that_counts = 1e9;

// `bits` has the bits of a value of this kind.
float value_of(std::uint32_t bits, Kind kind) noexcept {
  const auto half = static_cast<std::uint16_t>(bits);
  return std::bit_cast<float>(kind == Kind::f32    ? bits
                              : kind == Kind::bf16 ? kernels::f32_of_bf16(half)
                                                   : kernels::f32_of_f16(half));
}

// A plain tensor on the CPU whose values can be read.
struct Readable {
  DLTensor view{};
  Kind kind = Kind::other;
  bool is_contiguous = false;

  bool open(PyObject* tensor) noexcept {
    kind = host::kind_of(tensor);
    const bool is_open =
        is_floating(kind) && host::can_view() && host::view_on_cpu(tensor, view) && host::is_of_kind(view, kind);
    is_contiguous = is_open && host::is_contiguous(view);
    return is_open;
  }

  // Returns the value at a position in the order of the last index.
  [[nodiscard]] float at(std::int64_t position) const noexcept {
    std::int64_t offset = is_contiguous ? position : 0;
    for (std::int32_t i = is_contiguous ? 0 : view.ndim; i-- > 0; position /= view.shape[i]) {
      offset += position % view.shape[i] * view.strides[i];
    }
    const std::int64_t size = kind == Kind::f32 ? 4 : 2;
    std::uint32_t bits = 0;
    std::memcpy(&bits, static_cast<const char*>(view.data) + view.byte_offset + offset * size, size);
    return value_of(bits, kind);
  }
};

// Calls `visit` with the values of a plain tensor on the CPU until it returns false.
template <typename Visit>
void for_each_value(PyObject* tensor, const Visit& visit) noexcept {
  Readable readable;
  if (!readable.open(tensor)) return;
  const std::int64_t count = std::min(host::count_in(readable.view), most_values);
  for (std::int64_t i = 0; i < count && visit(readable.at(i)); ++i) {
  }
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

constexpr float very_little = 1.0F / 128;  // a quarter of it, or more, may be the rounding of a term in bfloat16

// Calls `visit` with samples of the sizes of a term's values, and with the values of the sum at their places. Returns
// their number.
template <typename Visit>
std::int64_t for_each_pair(PyObject* term, PyObject* sum, const Visit& visit) noexcept {
  constexpr std::int64_t most_samples = 4096;
  Readable before;
  Readable after;
  if (!has_sizes_of(term, sum) || !before.open(term) || !after.open(sum)) return 0;
  const std::int64_t count = host::count_in(after.view);
  const std::int64_t step = std::max<std::int64_t>(1, count / most_samples);
  for (std::int64_t i = 0; i < count; i += step) visit(std::fabs(before.at(i)), after.at(i));
  return (count + step - 1) / step;
}

// Returns 2 if much of most values of a sum may be the rounding of a term. Returns 1 if little is left of some, and all
// others have one sign: it is a distance, not a sum in which values cancel by chance. Otherwise returns 0.
int cancels(PyObject* term, PyObject* sum) noexcept {
  constexpr float little = 1.0F / 64;
  constexpr std::int64_t fewest = 64;  // values, of which one cancelled
  std::int64_t cancelled = 0;
  std::int64_t mostly_rounding = 0;
  std::int64_t positive = 0;
  std::int64_t negative = 0;
  const std::int64_t examined = for_each_pair(term, sum, [&](float size, float value) {
    if (value == 0) return;  // exactly the same number was subtracted, as in `scores - scores.max()`
    if (std::fabs(value) < little * size) {
      ++cancelled;
      if (std::fabs(value) < very_little * size) ++mostly_rounding;
    } else {
      ++(value > 0 ? positive : negative);
    }
  });
  if (examined < fewest || cancelled * fewest < examined) return 0;
  if (2 * mostly_rounding > cancelled + positive + negative) return 2;
  return (positive == 0) != (negative == 0) ? 1 : 0;
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

// Returns how much of what is left of a term in the sum may be its rounding, as `cancels` does.
int spoils(PyObject* term, PyObject* other, PyObject* sum) noexcept {
  if (!host::is_exact_tensor(term)) return 0;
  if (is_lower(host::kind_of(term))) {
    // If the other term is in lower precision too, it may be made of this one, unless it is known how it was made.
    const bool may_be_related = host::is_exact_tensor(other) && is_lower(host::kind_of(other)) && !maker_of(other);
    return may_be_related ? 0 : cancels(term, sum);
  }
  const Record* const maker = maker_of(term);  // in float32: perhaps a sum with a term in lower precision
  const bool is_sum = maker != nullptr && maker->sensitivity == Sensitivity::sum && !is_lower(maker->wanted());
  return is_sum ? cancels(term, sum) : 0;
}

bool is_next_to_one(PyObject* number) noexcept {
  return PyFloat_Check(number) && PyFloat_AS_DOUBLE(number) >= 0.9 && PyFloat_AS_DOUBLE(number) < 1;
}

}  // namespace

Magnitude magnitude_of(PyObject* tensor, bool whole) {
  constexpr std::size_t most_in_sample = 1 << 15;  // in blocks at equal distances
  constexpr std::size_t block = 1 << 11;
  Magnitude found{.kind = host::kind_of(tensor)};
  if (!is_floating(found.kind) && found.kind != Kind::wide) return found;
  if (host::is_plain_tensor(tensor) && host::count_elements(tensor) == 0) return found;
  host::Geometry geometry;
  // Kernels for float64 are not worth their code: its calls are rare in mixed precision.
  if (found.kind == Kind::wide || !host::is_plain_tensor(tensor) || !host::can_view() ||
      !host::read_geometry(tensor, geometry) || !geometry.is_dense()) {
    found.state = Finite::unknown;
    return found;
  }
  const auto* const values = static_cast<const char*>(geometry.values);
  const auto count = static_cast<std::size_t>(geometry.count());
  using kernels::Float;
  const Float type = found.kind == Kind::f32 ? Float::f32 : found.kind == Kind::bf16 ? Float::bf16 : Float::f16;
  const std::size_t blocks = whole || count <= most_in_sample ? 1 : most_in_sample / block;
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < blocks; ++i) {
    const std::size_t begin = blocks == 1 ? 0 : i * (count - block) / (blocks - 1);
    const std::size_t length = blocks == 1 ? count : block;
    largest = std::max(largest, kernels::largest_magnitude(values + begin * kernels::size_of(type), type, length));
  }
  const std::uint32_t infinity = kernels::infinity_of(type);
  if (largest < infinity) {
    found.largest = value_of(largest, found.kind);
  } else {
    found.state = largest == infinity ? Finite::infinities : Finite::nans;
  }
  return found;
}

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
  if (record.sensitivity != Sensitivity::sum) return;
  const int cancelled = std::max(spoils(first, second, result), spoils(second, first, result));
  if (cancelled > 0) ++record.noticed.cancelled;
  if (cancelled == 2) ++record.noticed.mostly_rounding;
  if (is_lost_ridge(first, second) || is_lost_ridge(second, first)) ++record.noticed.lost_ridges;
  if (record.key.module == nullptr) notice_difference(first, second, result);
}

void notice_difference(PyObject* one, PyObject* other, PyObject* difference) noexcept {
  constexpr std::uint32_t lost_bits = 0x1FFFU;  // of float16, and so of bfloat16
  for (PyObject* const term : {one, other}) {
    Record* const maker = host::is_exact_tensor(term) ? maker_of(term) : nullptr;
    if (maker == nullptr || maker->key.module == nullptr || !is_lower(maker->wanted())) continue;
    std::uint64_t equal = 0;
    std::uint64_t nearly_equal = 0;
    std::uint64_t others = 0;
    for_each_pair(has_sizes_of(one, difference) ? one : other, difference, [&](float size, float value) {
      // Both values have the few digits of a lower precision, as one and their difference have, and neither is a label.
      const std::uint32_t bits = std::bit_cast<std::uint32_t>(size) | std::bit_cast<std::uint32_t>(value);
      const bool are_results = (bits & lost_bits) == 0 && std::fabs(size - 1) > std::fabs(value);
      ++(are_results && value == 0                              ? equal
         : are_results && std::fabs(value) < very_little * size ? nearly_equal
                                                                : others);
    });
    if (nearly_equal + others == 0) nearly_equal = equal;  // else a part of them is the same, as in `out - out.max()`
    maker->noticed.nearly_equal += nearly_equal;
    maker->noticed.subtracted += nearly_equal + others;
    return;
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

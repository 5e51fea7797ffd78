#include "accel/packed/trial.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "accel/packed/library.hpp"
#include "accel/packed/probe.hpp"

namespace habana_mp::accel {

namespace {

Owned make_input(const PackedCall& like) {
  DLTensor view;
  if (!host::view_on_cpu(like.input, view)) return nullptr;
  const std::vector<std::int64_t> sizes(view.shape, view.shape + view.ndim);
  return host::new_empty(like.input, sizes);
}

// Returns the transposed view of a contiguous matrix, or null.
Owned transposed(PyObject* matrix) {
  host::Geometry geometry;
  if (matrix == nullptr || !host::read_geometry(matrix, geometry)) return nullptr;
  std::ranges::reverse(geometry.sizes);
  std::ranges::reverse(geometry.strides);
  return host::as_strided(matrix, geometry, 0);
}

}  // namespace

std::optional<Rows> rows_of(const DLTensor& view, std::int64_t length) {
  const std::int32_t last = view.ndim - 1;
  if (last < 1 || view.ndim > most_dimensions || view.shape[last] != length) return std::nullopt;
  if (view.strides == nullptr) {
    Rows rows{1, length};
    for (std::int32_t i = 0; i < last; ++i) rows.count *= view.shape[i];
    return rows;
  }
  if (view.strides[last] != 1) return std::nullopt;
  Rows rows;
  std::int64_t expected = length;
  for (std::int32_t i = last - 1; i >= 0; --i) {
    const std::int64_t size = view.shape[i];
    if (size != 1) {
      const bool may_be_apart = last == 1 && view.strides[i] >= length;
      if (view.strides[i] != expected && !may_be_apart) return std::nullopt;
      if (rows.step == 0) rows.step = view.strides[i];
    }
    rows.count *= size;
    expected *= size;
  }
  if (rows.step == 0) rows.step = length;
  return rows;
}

std::optional<ProductCase> product_case_of(const Entry& entry, const PackedCall& call) {
  DLTensor view;
  if (!call.is_product() || entry.geometry.sizes.size() != 2 || !host::view_on_cpu(call.input, view)) {
    return std::nullopt;
  }
  const auto [outer, inner] = sides_for(call, entry);
  const std::optional<Rows> rows = rows_of(view, inner);
  if (!rows || rows->count == 0) return std::nullopt;
  const bool wants_matrix = call.what == Packs::addmm || call.what == Packs::mm;
  if (wants_matrix && view.ndim != 2) return std::nullopt;
  constexpr std::size_t most_digits = 64;
  const auto count = static_cast<std::size_t>(rows->count);
  const auto digits = static_cast<std::size_t>(std::bit_width(count));
  const std::size_t kind = rows->count * inner * outer <= small_product ? most_digits + count : digits;
  return ProductCase{
      .what = call.what,
      .transposed = call.transposed,
      .outer = outer,
      .inner = inner,
      .rows = kind,
      .threads = host::torch_threads(),
      .has_bias = call.bias != Py_None,
      .is_matrix = view.ndim == 2,
  };
}

bool has_supported_rows(PyObject* input) noexcept {
  DLTensor view;
  if (!host::view_on_cpu(input, view) || view.ndim < 2) return false;
  return rows_of(view, view.shape[view.ndim - 1]).has_value();
}

void* values_of(PyObject* tensor) {
  DLTensor view;
  if (tensor == nullptr || !host::is_plain_tensor(tensor) || host::kind_of_tensor(tensor) != Kind::bf16 ||
      !host::view_on_cpu(tensor, view) || !host::is_contiguous(view)) {
    return nullptr;
  }
  return static_cast<char*>(view.data) + view.byte_offset;
}

ProductTrial::ProductTrial(const ProductCase& one, const PackedCall& like)
    : case_(one),
      bias_(one.has_bias ? host::new_empty(like.bias, std::array{one.outer}) : Owned::borrowed(Py_None)),
      weight_(host::new_empty(
          like.input, like.is_inner_first() ? std::array{one.inner, one.outer} : std::array{one.outer, one.inner})),
      given_(one.transposed ? transposed(weight_.get()) : Owned::borrowed_or_null(weight_.get())),
      input_(make_input(like)),
      has_values_(values_of(weight_.get()) != nullptr && given_ && values_of(input_.get()) != nullptr &&
                  (!one.has_bias || values_of(bias_.get()) != nullptr)),
      call_{one.what, input_.get(), weight_.get(), bias_.get(), nullptr, one.transposed} {
  if (has_values_) fill_weight();
}

void ProductTrial::fill_weight() {
  auto* const values = static_cast<std::uint16_t*>(values_of(weight_.get()));
  if (!call_.is_inner_first()) {
    fill_with_cancelling_sums(values, case_.outer, case_.inner, false, 0);
    return;
  }
  const std::int64_t different = std::min(case_.outer, different_rows);
  std::vector<std::uint16_t> rows(static_cast<std::size_t>(different * case_.inner));
  fill_with_cancelling_sums(rows.data(), different, case_.inner, false, 0);
  for (std::int64_t k = 0; k < case_.inner; ++k) {
    std::uint16_t* const row = values + k * case_.outer;
    for (std::int64_t j = 0; j < different; ++j) row[j] = rows[static_cast<std::size_t>(j * case_.inner + k)];
    // Copies the columns that differ. Each of them is filled before it is copied.
    for (std::int64_t j = different; j < case_.outer; ++j) row[j] = row[j - different];
  }
}

bool ProductTrial::show(const std::function<bool(PyObject* expected)>& compare) {
  if (!has_values_) return false;
  constexpr std::int64_t least_compared = 256;
  std::int64_t compared = 0;
  for (std::uint64_t seed = 1; compared < least_compared; ++seed) {
    if (!show_one(seed, false, compare)) return false;
    compared += std::min(rows(), different_rows) * std::min(case_.outer, different_rows);
  }
  return show_one(0, true, compare);
}

bool ProductTrial::show_one(std::uint64_t seed, bool denormal, const std::function<bool(PyObject* expected)>& compare) {
  fill(seed, denormal);
  const Owned expected = call_plain(call_, given_.get());
  return expected && compare(expected.get());
}

// Fills the input, and fills the bias with values as small as the sums. If `denormal` is true, the input has denormals,
// which some kernels treat as zero, and the bias is zero.
void ProductTrial::fill(std::uint64_t seed, bool denormal) {
  auto* const input = static_cast<std::uint16_t*>(values_of(input_.get()));
  fill_with_cancelling_sums(input, rows(), case_.inner, true, seed);
  if (denormal) {
    // Removes the signs, so that the values do not cancel.
    const std::int64_t count = rows() * case_.inner;
    for (std::int64_t i = 0; i < count; ++i) input[i] &= 0x007f;
  }
  if (!case_.has_bias) return;
  auto* const bias = static_cast<std::uint16_t*>(values_of(bias_.get()));
  fill_with_noise(bias, case_.outer, seed);
  constexpr unsigned by_2_to_the_19th = 19U << 7U;
  for (std::int64_t i = 0; i < case_.outer; ++i) {
    bias[i] = denormal ? std::uint16_t{0} : static_cast<std::uint16_t>(bias[i] - by_2_to_the_19th);
  }
}

}  // namespace habana_mp::accel

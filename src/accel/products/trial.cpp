#include "accel/products/trial.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "accel/products/library.hpp"
#include "accel/products/probe.hpp"
#include "kernels/product.hpp"

namespace habana_mp::accel {

namespace {

Owned make_input(const WeightCall& like) {
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

bool has_bias_of_layer(const WeightCall& call, std::int64_t outputs) noexcept {
  if (call.bias == Py_None) return true;
  DLTensor bias;
  return !host::is_negative(call.bias) && host::view_on_cpu(call.bias, bias) && bias.ndim == 1 &&
         host::is_contiguous(bias) && bias.shape[0] == outputs;
}

std::optional<ProductCase> product_case_of(const WeightCall& call) {
  DLTensor input;
  DLTensor weight;
  if (!call.is_product() || !host::view_on_cpu(call.input, input) || !host::view_on_cpu(call.weight, weight) ||
      weight.ndim != 2 || host::is_negative(call.input) || host::is_negative(call.weight)) {
    return std::nullopt;
  }
  const bool is_linear = call.what == Packs::linear;
  const std::int64_t outer = weight.shape[is_linear ? 0 : 1];
  const std::int64_t inner = weight.shape[is_linear ? 1 : 0];
  const bool is_transposed = weight.strides != nullptr && weight.strides[1] != 1;
  // The weight's rows or columns are adjacent, without gaps.
  if (weight.strides != nullptr && (weight.strides[is_transposed ? 0 : 1] != 1 ||
                                    weight.strides[is_transposed ? 1 : 0] != weight.shape[is_transposed ? 0 : 1])) {
    return std::nullopt;
  }
  const std::optional<Rows> rows = rows_of(input, inner);
  if (!rows || rows->count == 0) return std::nullopt;
  const bool wants_matrix = call.what == Packs::addmm || call.what == Packs::mm;
  if (wants_matrix && input.ndim != 2) return std::nullopt;
  if (!has_bias_of_layer(call, outer)) return std::nullopt;
  constexpr std::int64_t most_exact_rows = 32;
  const std::int64_t count = rows->count;
  const bool is_exact = count <= most_exact_rows || kernels::has_tiles() || count * inner * outer <= small_product;
  return ProductCase{
      .what = call.what,
      .inner_first = is_linear == is_transposed,
      .outer = outer,
      .inner = inner,
      .rows = is_exact ? count : static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(count))),
      .threads = host::torch_threads(),
      .has_bias = call.bias != Py_None,
      .is_matrix = input.ndim == 2,
  };
}

void* values_of(PyObject* tensor) {
  DLTensor view;
  if (tensor == nullptr || !host::is_plain_tensor(tensor) || host::kind_of_tensor(tensor) != Kind::bf16 ||
      !host::view_on_cpu(tensor, view) || !host::is_contiguous(view)) {
    return nullptr;
  }
  return static_cast<char*>(view.data) + view.byte_offset;
}

ProductTrial::ProductTrial(const ProductCase& one, const WeightCall& like)
    : case_(one),
      bias_(one.has_bias ? host::new_empty(like.bias, std::array{one.outer}) : Owned::borrowed(Py_None)),
      weight_(host::new_empty(like.input,
                              one.inner_first ? std::array{one.inner, one.outer} : std::array{one.outer, one.inner})),
      given_(one.is_transposed() ? transposed(weight_.get()) : Owned::borrowed_or_null(weight_.get())),
      input_(make_input(like)),
      has_values_(values_of(weight_.get()) != nullptr && given_ && values_of(input_.get()) != nullptr &&
                  (!one.has_bias || values_of(bias_.get()) != nullptr)),
      call_{one.what, input_.get(), has_values_ ? given_.get() : nullptr, bias_.get()} {}

void ProductTrial::fill_weight() {
  auto* const values = static_cast<std::uint16_t*>(values_of(weight_.get()));
  if (!case_.inner_first) {
    fill_with_cancelling_sums(values, case_.outer, case_.inner, false, 0, large_ends_);
    return;
  }
  const std::int64_t different = std::min(case_.outer, different_rows);
  std::vector<std::uint16_t> rows(static_cast<std::size_t>(different * case_.inner));
  fill_with_cancelling_sums(rows.data(), different, case_.inner, false, 0, large_ends_);
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
  for (const bool large_ends : {true, false}) {
    if (large_ends && !has_large_ends(case_.inner)) continue;
    large_ends_ = large_ends;
    fill_weight();
    std::int64_t compared = 0;
    for (std::uint64_t seed = 1; compared < least_compared; ++seed) {
      if (!show_one(seed, false, compare)) return false;
      compared += std::min(rows(), different_rows) * std::min(case_.outer, different_rows);
    }
  }
  return show_one(0, true, compare);
}

bool ProductTrial::show_one(std::uint64_t seed, bool denormal, const std::function<bool(PyObject* expected)>& compare) {
  fill(seed, denormal);
  const Owned expected = call_plain(call_);
  return expected && compare(expected.get());
}

// Fills the input, and fills the bias with values as small as the sums. If `denormal` is true, the input has denormals,
// which some kernels treat as zero, and the bias is zero.
void ProductTrial::fill(std::uint64_t seed, bool denormal) {
  auto* const input = static_cast<std::uint16_t*>(values_of(input_.get()));
  fill_with_cancelling_sums(input, rows(), case_.inner, true, seed, large_ends_);
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

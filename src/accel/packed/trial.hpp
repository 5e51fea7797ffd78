// Calls of linear layers, and of other products, of one kind, and the values with which they are tried: do they give
// the bits of torch's own function when they are made another way? For this room only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "accel/packed/packed.hpp"
#include "host/aten.hpp"
#include "owned.hpp"
#include "weights/entry.hpp"

namespace habana_mp::accel {

using weights::Entry;

// Calls of one kind: they sum in the same order, and take about as long. The library orders the sums of one row
// otherwise than those of several, and may order them by the number of its threads; torch has a loop of its own for the
// smallest products.
struct ProductCase {
  Packs what;
  bool transposed;
  std::int64_t outer;
  std::int64_t inner;
  std::size_t rows;  // the binary digits of their number; of small products the number itself
  std::size_t threads;
  bool has_bias;
  bool is_matrix;  // an input of two dimensions

  bool operator==(const ProductCase&) const = default;
};
struct HashOfProductCase {
  std::size_t operator()(const ProductCase& one) const noexcept {
    const auto outer = static_cast<std::size_t>(one.outer);
    const auto inner = static_cast<std::size_t>(one.inner);
    const auto what = static_cast<std::size_t>(one.what) * 2 + (one.transposed ? 1U : 0U);
    return ((outer * 1000003 + inner) * 1000003 + one.rows * 8 + one.threads * 4096 + (what << 20U)) ^
           (one.has_bias ? 1U : 0U) ^ (one.is_matrix ? 2U : 0U);
  }
};

struct Sides {
  std::int64_t outer;
  std::int64_t inner;
};
// How the weight, a matrix, counts in such a call.
inline Sides sides_for(const PackedCall& call, const Entry& entry) {
  const std::vector<std::int64_t>& sizes = entry.geometry.sizes;
  return call.is_inner_first() ? Sides{sizes[1], sizes[0]} : Sides{sizes[0], sizes[1]};
}

// Torch calls its library from 4096 products of two numbers on; some other version may from more.
inline constexpr std::int64_t small_product = 1 << 14;

// Nothing where it is no product, or the input's rows are none, or lie so that torch sums them otherwise.
std::optional<ProductCase> product_case_of(const Entry& entry, const PackedCall& call);

// An input's rows in memory.
struct Rows {
  std::int64_t count = 1;
  std::int64_t step = 0;  // from one to the next, in elements
};
inline constexpr std::int32_t most_dimensions = 8;

// Nothing where these are no rows of that length, or lie in a way for which torch has other ways, that sum otherwise:
// the rows of a matrix must lie evenly, those of more dimensions one after the other.
std::optional<Rows> rows_of(const DLTensor& view, std::int64_t length);

// Do an input's rows lie in memory so that torch's function takes the way for which packed weights give the same bits?
// From others it sums in another order, or adds a bias after rounding.
bool lies_in_rows(PyObject* input) noexcept;

// Where the values of a contiguous bfloat16 tensor on the CPU are; null where it is none.
void* values_of(PyObject* tensor);

// A call of a kind, with a weight, a bias and inputs of its own: the order of their sums shows in the results.
class ProductTrial {
 public:
  ProductTrial(const ProductCase& one, const PackedCall& like);

  // As the weight of such calls lies. Null where it could not be made.
  [[nodiscard]] PyObject* weight() const { return has_values_ ? weight_.get() : nullptr; }
  // The same as the call is written: that or its transposed view.
  [[nodiscard]] PyObject* given() const { return given_.get(); }
  [[nodiscard]] const PackedCall& call() const { return call_; }
  [[nodiscard]] std::int64_t rows() const { return host::count_elements(input_.get()) / case_.inner; }

  // Gives the result of torch's function to `compare`, for one input after the other until enough results are seen, and
  // for one of denormals, until it says no. False where it did, or where something failed.
  bool show(const std::function<bool(PyObject* expected)>& compare);

 private:
  bool show_one(std::uint64_t seed, bool denormal, const std::function<bool(PyObject* expected)>& compare);
  void fill(std::uint64_t seed, bool denormal);
  void fill_weight();

  ProductCase case_;
  Owned bias_;
  Owned weight_;
  Owned given_;  // the weight as the call is written
  Owned input_;
  bool has_values_;
  PackedCall call_;
};

}  // namespace habana_mp::accel

// Trials of linear layers and other products of one kind: they show whether another way to compute such a call gives
// the bits of torch's own function. Only for this directory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "accel/products/call.hpp"
#include "host/aten.hpp"
#include "host/modes.hpp"
#include "host/view.hpp"
#include "owned.hpp"

namespace habana_mp::accel {

// Calls of one kind: they sum in the same order. The library sums one row in another order than several rows, and its
// order may depend on its number of threads; with AMX's tiles it depends on the exact number of rows. Torch has a loop
// of its own for the smallest products.
struct ProductCase {
  Packs what;
  bool inner_first;  // the weight is [inner][outer] in memory, not [outer][inner]
  std::int64_t outer;
  std::int64_t inner;
  std::int64_t rows;  // the largest number of rows of such calls
  std::size_t threads;
  bool has_bias;
  bool is_matrix;  // the input has two dimensions

  bool operator==(const ProductCase&) const = default;

  // True if the call passes the weight as a transposed view of its memory.
  [[nodiscard]] bool is_transposed() const { return (what == Packs::linear) == inner_first; }
};
struct HashOfProductCase {
  std::size_t operator()(const ProductCase& one) const noexcept {
    const auto outer = static_cast<std::size_t>(one.outer);
    const auto inner = static_cast<std::size_t>(one.inner);
    const auto what = static_cast<std::size_t>(one.what) * 2 + (one.inner_first ? 1U : 0U);
    return ((outer * 1000003 + inner) * 1000003 + static_cast<std::size_t>(one.rows) * 8 + one.threads * 4096 +
            (what << 20U)) ^
           (one.has_bias ? 1U : 0U) ^ (one.is_matrix ? 2U : 0U);
  }
};

// Torch calls its library for 4096 products of two numbers or more; another version may start at a larger number.
inline constexpr std::int64_t small_product = 1 << 14;

// True if the call has no bias, or one number for each output, as a layer has it.
bool has_bias_of_layer(const WeightCall& call, std::int64_t outputs) noexcept;

// Returns the kind of a product. Returns nothing if the input or the weight has a layout for which torch sums in
// another order, or adds a bias after rounding; if one of them is empty or not on the CPU; or if the bias has another
// form than a layer's bias.
std::optional<ProductCase> product_case_of(const WeightCall& call);

// The rows of an input in memory.
struct Rows {
  std::int64_t count = 1;
  std::int64_t step = 0;  // from one row to the next, in elements
};
inline constexpr std::int32_t most_dimensions = 8;

// Returns the rows of a view. Returns nothing if the rows do not have this length, or if torch computes such a layout
// in another way, which sums in another order. The rows of a matrix must be at equal distances without overlap. The
// rows of a tensor with more dimensions must be adjacent.
std::optional<Rows> rows_of(const DLTensor& view, std::int64_t length);

// Returns the address of the values of a contiguous bfloat16 tensor on the CPU; null for any other tensor.
void* values_of(PyObject* tensor);

// A call of a kind, with its own weight, bias and inputs. With these values the results depend on the order of the
// sums.
class ProductTrial {
 public:
  ProductTrial(const ProductCase& one, const WeightCall& like);

  // Returns the call. Its weight is null if it could not be made.
  [[nodiscard]] const WeightCall& call() const { return call_; }
  [[nodiscard]] std::int64_t rows() const { return host::count_elements(input_.get()) / case_.inner; }

  // Passes results of torch's function to `compare`, for one input after the other until enough values are compared,
  // and then for an input of denormals. Stops when `compare` returns false. Returns false then, or if something failed.
  bool show(const std::function<bool(PyObject* expected)>& compare);

 private:
  bool show_one(std::uint64_t seed, bool denormal, const std::function<bool(PyObject* expected)>& compare);
  void fill(std::uint64_t seed, bool denormal);
  void fill_weight();

  ProductCase case_;
  Owned bias_;
  Owned weight_;
  Owned given_;  // the weight or its transposed view, as the call passes it
  Owned input_;
  bool has_values_;
  bool large_ends_ = false;
  WeightCall call_;
};

}  // namespace habana_mp::accel

#include "accel/products/own_products.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <unordered_map>
#include <vector>

#include "accel/products/library.hpp"
#include "accel/products/packed_weights.hpp"
#include "accel/products/probe.hpp"
#include "errors.hpp"
#include "host/aten.hpp"
#include "tensor/cast.hpp"
#include "weights/entry.hpp"

namespace habana_mp::accel {

using kernels::Order;

namespace {

constexpr std::int64_t least_elements = 1 << 6;
// With more rows torch's library is as fast. On AMX it also sums in blocks that depend on the number of rows, so each
// number is tried; with a small weight that takes little time.
constexpr std::int64_t most_rows = 512;
constexpr std::int64_t most_rows_with_tiles = 32;
constexpr std::int64_t small_weight = 1 << 16;
// Below this many products of two numbers a call ends before another thread could use the GIL.
constexpr std::size_t least_products_without_gil = std::size_t{1} << 21;

// The GIL guards all state of this file. Like the cache, the map is never destroyed.
NeverDestroyed<std::unordered_map<ProductCase, std::optional<Sums>, HashOfProductCase>> all_sums;

// Returns the product of the call, whose values are read from here on. All tensors must have been checked.
kernels::Product product_of(const ProductCase& one, const WeightCall& call, const DLTensor& input, const Rows& rows) {
  DLTensor weight;
  host::view_on_cpu(call.weight, weight);
  return {
      .input = static_cast<const char*>(input.data) + input.byte_offset,
      .input_step = static_cast<std::size_t>(rows.step),
      .rows = static_cast<std::size_t>(rows.count),
      .inner = static_cast<std::size_t>(one.inner),
      .sums = {Order::pairs, 0},
      .weight = static_cast<const char*>(weight.data) + weight.byte_offset,
      .weight_step = static_cast<std::size_t>(one.inner_first ? one.outer : one.inner),
      .inner_first = one.inner_first,
      .outer = static_cast<std::size_t>(one.outer),
      .bias = one.has_bias ? values_of(call.bias) : nullptr,
      .result = nullptr,
      .result_step = static_cast<std::size_t>(one.outer),
  };
}

// Returns the same product for some of the weight's columns in the result.
kernels::Product part_of(const kernels::Product& whole, std::size_t column, std::size_t columns) {
  kernels::Product part = whole;
  const std::size_t begin = whole.inner_first ? column : column * whole.weight_step;
  part.weight = static_cast<const std::uint16_t*>(whole.weight) + begin;
  if (whole.bias != nullptr) part.bias = static_cast<const std::uint16_t*>(whole.bias) + column;
  part.outer = columns;
  return part;
}

// Runs our kernels with the values that a trial of a kind of call uses.
class Trial {
 public:
  Trial(const ProductCase& one, const WeightCall& like) : case_(one), values_(one, like) {}

  // Returns the sums that give the bits of torch's function; nothing if none do, or if the trial failed.
  std::optional<Sums> run() {
    if (values_.call().weight == nullptr) return std::nullopt;
    std::vector<Sums> left = sums_to_try();
    const bool all_seen = values_.show([&](PyObject* expected) { return compare(expected, left) && !left.empty(); });
    // If several orders are left, they gave the same bits in this trial only, and the right one is unknown.
    if (all_seen && left.size() == 1) return left.front();
    if (assumed_products() != Assumed::own_in_any_order) return std::nullopt;
    return Sums{Order::pairs, whole()};
  }

 private:
  [[nodiscard]] std::size_t whole() const { return static_cast<std::size_t>(case_.inner); }

  // Returns the sums to try. The library divides long rows into blocks of a power of two; with AMX's tiles, which it
  // may use, into nearly equal blocks of whole tiles.
  [[nodiscard]] std::vector<Sums> sums_to_try() const {
    constexpr std::size_t tile = 32;
    std::vector<Sums> all{{Order::pairs, whole()}};
    for (std::size_t block = smallest_block; block <= 2048 && block < whole(); block *= 2) {
      all.push_back({Order::pairs, block});
    }
    if (values_.rows() == 1) all.push_back({Order::lanes, whole()});
    if (values_.rows() * case_.inner * case_.outer <= small_product) all.push_back({Order::dots, whole()});
    if (!kernels::has_tiles() || !kernels::can_sum(Order::tiles)) return all;
    all.push_back({Order::tiles, whole()});
    for (std::size_t parts = 2; parts * smallest_block <= whole() + smallest_block; ++parts) {
      const std::size_t block = (whole() + parts * tile - 1) / (parts * tile) * tile;
      // A block of one tile is added like the tile itself.
      if (whole() > block + tile && block != all.back().block) all.push_back({Order::tiles, block});
    }
    return all;
  }

  // Removes the sums for which our kernels give other bits than torch's function: first by a few columns, since there
  // are many, then by all. Returns false if something failed.
  bool compare(PyObject* expected, std::vector<Sums>& left) const {
    DLTensor input;
    if (!host::view_on_cpu(values_.call().input, input)) return false;
    const std::optional<Rows> rows = rows_of(input, case_.inner);
    const auto* const wanted = static_cast<const std::uint16_t*>(values_of(expected));
    if (!rows || wanted == nullptr || host::count_elements(expected) != rows->count * case_.outer) return false;
    const kernels::Product product = product_of(case_, values_.call(), input, *rows);
    constexpr std::size_t few = 64;
    const std::size_t first = std::min(few, product.outer);
    bool failed = false;
    const auto differs = [&](std::size_t columns) {
      return [&, columns](const Sums& sums) {
        kernels::Product part = part_of(product, 0, columns);
        std::vector<std::uint16_t> made(part.rows * columns);
        part.sums = sums;
        part.result = made.data();
        part.result_step = columns;
        failed = failed || !kernels::multiply(part, static_cast<unsigned>(case_.threads));
        for (std::size_t i = 0; i < part.rows; ++i) {
          if (std::memcmp(&made[i * columns], wanted + i * product.outer, columns * sizeof made[0]) != 0) return true;
        }
        return false;
      };
    };
    std::erase_if(left, differs(first));
    std::erase_if(left, differs(product.outer));
    return !failed;
  }

  ProductCase case_;
  ProductTrial values_;
};

}  // namespace

bool may_multiply(const WeightCall& call) noexcept {
  const Assumed assumed = assumed_products();
  return call.is_product() && operators_of(call.what).plain && kernels::can_multiply() && host::can_look_inside() &&
         (assumed == Assumed::measured || assumed == Assumed::own_in_any_order);
}

bool is_worth_multiplying(const ProductCase& one) noexcept {
  const std::int64_t elements = one.outer * one.inner;
  const bool is_small = elements <= small_weight || one.rows * elements <= small_product;
  return one.inner % 2 == 0 && elements >= least_elements &&
         one.rows <= (kernels::has_tiles() && !is_small ? most_rows_with_tiles : most_rows);
}

const std::optional<Sums>* known_sums(const ProductCase& one) noexcept {
  const auto found = all_sums->find(one);
  return found == all_sums->end() ? nullptr : &found->second;
}

std::optional<Sums> try_sums(const ProductCase& one, const WeightCall& like) {
  Trial trial(one, like);
  const std::optional<Sums> found = trial.run();
  drop_error();
  if (PyErr_Occurred() != nullptr) return std::nullopt;
  return all_sums->insert_or_assign(one, found).first->second;
}

void forget_sums() noexcept { all_sums->clear(); }

Owned multiply(const ProductCase& one, const WeightCall& call, const Sums& sums) {
  DLTensor view;
  if (!host::view_on_cpu(call.input, view)) return nullptr;
  std::array<std::int64_t, most_dimensions> sizes{};
  std::copy_n(view.shape, view.ndim, sizes.begin());
  const auto dimensions = static_cast<std::size_t>(view.ndim);
  sizes[dimensions - 1] = one.outer;
  const Owned made = host::new_empty(call.input, std::span(sizes).first(dimensions));
  void* const result = values_of(made.get());
  // Other code may have run meanwhile, so all is read from here on.
  const std::optional<ProductCase> now = product_case_of(call);
  if (result == nullptr || !now || *now != one || !host::view_on_cpu(call.input, view)) return nullptr;
  for (PyObject* const tensor : {call.input, call.weight}) {
    if (host::kind_of_tensor(tensor) != Kind::bf16) return nullptr;
  }
  const std::optional<Rows> rows = rows_of(view, one.inner);
  if (!rows || rows->count * one.outer != host::count_elements(made.get())) return nullptr;
  kernels::Product product = product_of(one, call, view, *rows);
  if (one.has_bias && product.bias == nullptr) return nullptr;
  product.sums = sums;
  product.result = result;
  bool done = false;
  const auto run = [&] { done = kernels::multiply(product, static_cast<unsigned>(one.threads)); };
  if (product.rows * product.inner * product.outer < least_products_without_gil) {
    run();
  } else {
    without_gil(run);
  }
  if (!done) return nullptr;
  ++weights::counts.products;
  return Owned::borrowed(made.get());
}

}  // namespace habana_mp::accel

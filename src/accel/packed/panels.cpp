#include "accel/packed/panels.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "accel/packed/library.hpp"
#include "accel/packed/probe.hpp"
#include "errors.hpp"
#include "host/aten.hpp"
#include "stopwatch.hpp"

namespace habana_mp::accel {

using kernels::Order;

namespace {

// With at most this many rows, sums in the order of tiles are also tried without tiles. With more rows the tiles should
// be faster. Either all calls of a kind (trial.hpp) have more rows than this, or none of them has, so a measurement is
// valid for all of them.
constexpr std::int64_t most_rows_by_fma = 7;
// A weight with more values is not tried, since the measurement would need too much memory.
constexpr std::int64_t most_elements_for_panels = std::int64_t{1} << 26;
// A weight is not tried any more after this many failed trials.
constexpr std::uint32_t most_failed_trials = 8;
// A weight's panels must be faster by this factor than the plain weight: making them takes as long as several calls.
constexpr double required_speedup = 1.05;
// Below this many products of two numbers a call ends before another thread could use the GIL.
constexpr std::size_t least_products_without_gil = std::size_t{1} << 21;

// The GIL guards all state of this file. Like the cache, the map is never destroyed.
NeverDestroyed<std::unordered_map<ProductCase, PanelVerdict, HashOfProductCase>> all_verdicts;
std::unordered_map<ProductCase, PanelVerdict, HashOfProductCase>& verdicts() { return *all_verdicts; }

// Runs our kernels with the values that a trial of a kind of call uses.
class Trial {
 public:
  Trial(const ProductCase& one, const PackedCall& like)
      : case_(one),
        values_(one, like),
        panels_(values_.weight() == nullptr ? nullptr : make_panels(values_.weight(), like.is_inner_first())) {}

  // Returns nothing if something failed, so that the verdict is unknown.
  std::optional<PanelVerdict> run() {
    if (!panels_) return std::nullopt;
    std::vector<Sums> left = sums_to_try();
    const bool all_seen = values_.show([&](PyObject* expected) { return compare(expected, left) && !left.empty(); });
    if (!all_seen && !left.empty()) return std::nullopt;
    const bool in_any_order = assumed_packing() == Assumed::panels_in_any_order;
    if (!are_all_the_same(left)) return PanelVerdict{in_any_order, {Order::pairs, whole()}};
    if (in_any_order || assumed_packing() == Assumed::panels) return PanelVerdict{true, left.front()};
    return measured(left);
  }

 private:
  [[nodiscard]] std::size_t whole() const { return static_cast<std::size_t>(case_.inner); }

  // Returns the sums to try. Their block sizes are those that the library was seen to use, and half and twice these
  // sizes. If the library may use tiles, sums in tiles are included.
  [[nodiscard]] std::vector<Sums> sums_to_try() const {
    const bool tiles = kernels::has_tiles();
    const bool tiles_by_fma = tiles && values_.rows() <= most_rows_by_fma;
    const bool granted = tiles && kernels::can_sum(Order::tiles);
    std::vector<Sums> all;
    const auto add = [&](std::size_t block) {
      all.push_back({Order::pairs, block});
      if (granted) all.push_back({Order::tiles, block});
      if (tiles_by_fma) all.push_back({Order::tiles_by_fma, block});
    };
    add(whole());
    for (std::size_t block = smallest_block; block <= 2048 && block < whole(); block *= 2) add(block);
    if (values_.rows() == 1) all.push_back({Order::lanes, whole()});
    if (values_.rows() * case_.inner * case_.outer <= small_product) all.push_back({Order::dots, whole()});
    return all;
  }

  // Removes the sums for which our kernels give other bits than torch's function. Returns false if something failed.
  bool compare(PyObject* expected, std::vector<Sums>& left) {
    for (std::size_t i = left.size(); i-- > 0;) {
      const Owned made = multiply(left[i]);
      if (!made) return false;
      if (!are_same(made.get(), expected)) left.erase(left.begin() + static_cast<std::ptrdiff_t>(i));
    }
    return true;
  }

  // True if one order of sums is left, or several that are the same by definition. If other orders are left, they gave
  // the same bits in this trial only, and the right one is unknown.
  static bool are_all_the_same(const std::vector<Sums>& left) {
    const auto in_tiles = [](const Sums& sums) {
      return sums.order == Order::tiles || sums.order == Order::tiles_by_fma;
    };
    const auto is_the_first = [&](const Sums& sums) {
      const Sums& first = left.front();
      return sums.block == first.block && (sums.order == first.order || (in_tiles(sums) && in_tiles(first)));
    };
    return !left.empty() && std::ranges::all_of(left, is_the_first);
  }

  // Returns a verdict that is true if the fastest of these kernels is faster than torch's function and than its
  // library's packed weight. Compares the shortest of several calls that are made in turn. Returns nothing if a call
  // fails.
  std::optional<PanelVerdict> measured(const std::vector<Sums>& left) {
    const bool has_packed = library_packs(values_.call());
    const Owned packed = has_packed ? pack(values_.weight(), values_.call()) : nullptr;
    if (has_packed && !packed) return std::nullopt;
    constexpr int most_rounds = 7;
    constexpr int fewest_rounds = 3;
    constexpr double long_enough = 0.03;  // seconds; long calls need fewer rounds
    double plain = 1e9;
    double from_packed = 1e9;
    double from_panels = 1e9;
    Sums fastest = left.front();
    double spent = 0;
    for (int i = 0; i < most_rounds && (i < fewest_rounds || spent < long_enough); ++i) {
      const double one = time_of([&] { return call_plain(values_.call(), values_.given()); });
      if (one < 0) return std::nullopt;
      const double other =
          has_packed ? time_of([&] { return call_packed(values_.call(), packed.get()); }) : from_packed;
      if (other < 0) return std::nullopt;
      plain = std::min(plain, one);
      from_packed = std::min(from_packed, other);
      spent += one;
      for (const Sums& sums : left) {
        const double ours = time_of([&] { return multiply(sums); });
        if (ours < 0) return std::nullopt;
        if (ours < from_panels) fastest = sums;
        from_panels = std::min(from_panels, ours);
        spent += ours;
      }
    }
    return PanelVerdict{from_panels * required_speedup < plain && from_panels < from_packed, fastest};
  }

  Owned multiply(const Sums& sums) {
    return multiply_panels(values_.call(), panels_.get(), {case_.outer, case_.inner}, sums);
  }

  ProductCase case_;
  ProductTrial values_;
  Owned panels_;
};

}  // namespace

std::optional<PanelVerdict> known_verdict(const Entry& entry, const PackedCall& call) noexcept {
  const std::optional<ProductCase> one = product_case_of(entry, call);
  if (!one) return std::nullopt;
  const auto found = verdicts().find(*one);
  return found == verdicts().end() ? std::nullopt : std::optional(found->second);
}

bool may_try_panels(const Entry& entry, const PackedCall& call) noexcept {
  return kernels::can_multiply() && entry.probed < most_failed_trials && entry.elements >= least_elements_to_try &&
         entry.elements <= most_elements_for_panels && entry.geometry.sizes.size() == 2 &&
         sides_for(call, entry).inner % 2 == 0 && entry.geometry.strides[1] == 1 &&
         product_case_of(entry, call).has_value();
}

std::optional<PanelVerdict> try_panels(Entry& entry, const PackedCall& call) {
  const std::optional<ProductCase> one = product_case_of(entry, call);
  if (!one) return std::nullopt;
  Trial trial(*one, call);
  const std::optional<PanelVerdict> verdict = trial.run();
  drop_error();
  if (verdict && PyErr_Occurred() == nullptr) return verdicts().insert_or_assign(*one, *verdict).first->second;
  ++entry.probed;
  return std::nullopt;
}

void forget_panel_verdicts() noexcept { verdicts().clear(); }

Owned make_panels(PyObject* cast, bool inner_first) {
  host::Geometry geometry;
  if (values_of(cast) == nullptr || !host::read_geometry(cast, geometry) || geometry.sizes.size() != 2) return nullptr;
  const std::int64_t outer = geometry.sizes[inner_first ? 1 : 0];
  const std::int64_t inner = geometry.sizes[inner_first ? 0 : 1];
  Owned made = host::new_empty(cast, std::array{outer * inner});  // may run other code
  const unsigned threads = host::torch_threads();
  const void* const values = values_of(cast);
  void* const target = values_of(made.get());
  if (values == nullptr || !host::has_geometry(cast, geometry, true) || target == nullptr) return nullptr;
  tensor::run_kernel(outer * inner, [&] {
    kernels::arrange(values, static_cast<std::size_t>(outer), static_cast<std::size_t>(inner), inner_first, target,
                     threads);
  });
  return made;
}

Owned multiply_panels(const PackedCall& call, PyObject* panels, const Sides& sides, const Sums& sums) {
  const auto [outer, inner] = sides;
  DLTensor view;
  if (!host::view_on_cpu(call.input, view)) return nullptr;
  const std::optional<Rows> rows = rows_of(view, inner);
  if (!rows || rows->count == 0) return nullptr;
  std::array<std::int64_t, most_dimensions> sizes{};
  std::copy_n(view.shape, view.ndim, sizes.begin());
  sizes[static_cast<std::size_t>(view.ndim) - 1] = outer;
  const std::size_t dimensions = static_cast<std::size_t>(view.ndim);
  Owned result = host::new_empty(call.input, std::span(sizes).first(dimensions));
  const unsigned threads = host::torch_threads();
  // Other code may have run meanwhile, so addresses are read from here on.
  sizes[dimensions - 1] = inner;
  if (!host::view_on_cpu(call.input, view) || !host::is_of_kind(view, Kind::bf16) ||
      static_cast<std::size_t>(view.ndim) != dimensions ||
      !std::equal(view.shape, view.shape + dimensions, sizes.begin())) {
    return nullptr;
  }
  const std::optional<Rows> rows_now = rows_of(view, inner);
  if (!rows_now) return nullptr;
  const kernels::Product product{
      .input = static_cast<const char*>(view.data) + view.byte_offset,
      .input_step = static_cast<std::size_t>(rows_now->step),
      .rows = static_cast<std::size_t>(rows_now->count),
      .inner = static_cast<std::size_t>(inner),
      .sums = sums,
      .weight = values_of(panels),
      .outer = static_cast<std::size_t>(outer),
      .bias = call.bias == Py_None ? nullptr : values_of(call.bias),
      .result = values_of(result.get()),
  };
  if (product.result == nullptr || product.weight == nullptr || host::count_elements(panels) != outer * inner) {
    return nullptr;
  }
  if (call.bias != Py_None && (product.bias == nullptr || host::count_elements(call.bias) != outer)) return nullptr;
  if (product.rows * product.inner * product.outer < least_products_without_gil) {
    kernels::multiply(product, threads);
  } else {
    without_gil([&] { kernels::multiply(product, threads); });
  }
  return result;
}

}  // namespace habana_mp::accel

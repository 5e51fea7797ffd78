#include "weights/panels.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "errors.hpp"
#include "gil.hpp"
#include "kernels/product.hpp"
#include "stopwatch.hpp"
#include "tensor/aten.hpp"
#include "weights/library.hpp"
#include "weights/probe.hpp"

namespace habana_mp::weights {

namespace {

// Fewer values are not worth a measurement.
constexpr std::int64_t worth_trying = 1 << 10;
// A weight's panels must be faster by this factor than the weight as it is: making them takes as long as some calls.
constexpr double clearly = 1.05;
// Below so many products of two numbers a call is over sooner than another thread could make use of the GIL.
constexpr std::size_t gil_kept_below = std::size_t{1} << 21;
constexpr std::int32_t most_dimensions = 8;

// Calls of one kind: they sum in the same order, and take about as long. The library orders the sums of one row
// otherwise than those of several, and may order them by the number of its threads.
struct Case {
  std::int64_t outer;
  std::int64_t inner;
  unsigned row_digits;  // binary ones
  unsigned threads;
  bool has_bias;
  bool is_matrix;  // an input of two dimensions

  bool operator==(const Case&) const = default;
};
struct HashOfCase {
  std::size_t operator()(const Case& one) const noexcept {
    const auto outer = static_cast<std::size_t>(one.outer);
    const auto inner = static_cast<std::size_t>(one.inner);
    return ((outer * 1000003 + inner) * 1000003 + one.row_digits * 8 + one.threads * 1024) ^ (one.has_bias ? 1U : 0U) ^
           (one.is_matrix ? 2U : 0U);
  }
};

// Under the GIL, as everything here. Never destroyed, as the cache.
std::unordered_map<Case, PanelVerdict, HashOfCase>& verdicts() {
  static auto* const all = new std::unordered_map<Case, PanelVerdict, HashOfCase>;
  return *all;
}

// An input's rows in memory.
struct Rows {
  std::int64_t count = 1;
  std::int64_t step = 0;  // from one to the next, in elements; 0 where they do not lie evenly
};

// Nothing where these are no rows of that length.
std::optional<Rows> rows_of(const DLTensor& view, std::int64_t length) {
  const std::int32_t last = view.ndim - 1;
  if (last < 1 || view.ndim > most_dimensions || view.shape[last] != length) return std::nullopt;
  Rows rows;
  bool evenly = view.strides == nullptr || view.strides[last] == 1 || length == 1;
  std::int64_t expected = length;
  for (std::int32_t i = last - 1; i >= 0; --i) {
    const std::int64_t size = view.shape[i];
    if (size != 1 && view.strides != nullptr) {
      if (rows.count == 1) {
        expected = view.strides[i];
        rows.step = expected;
      }
      evenly = evenly && view.strides[i] == expected && expected >= length;
    }
    rows.count *= size;
    expected *= size;
  }
  if (rows.step == 0) rows.step = length;
  if (!evenly) rows.step = 0;
  return rows;
}

std::optional<Case> case_of(const Entry& entry, const PackedCall& call) {
  DLTensor view;
  if (entry.geometry.sizes.size() != 2 || !tensor::view_on_cpu(call.input, view)) return std::nullopt;
  const std::int64_t outer = entry.geometry.sizes[0];
  const std::int64_t inner = entry.geometry.sizes[1];
  const std::optional<Rows> rows = rows_of(view, inner);
  if (!rows || rows->count == 0) return std::nullopt;
  const auto digits = static_cast<unsigned>(std::bit_width(static_cast<std::uint64_t>(rows->count)));
  return Case{outer, inner, digits, tensor::torch_threads(), call.bias != Py_None, view.ndim == 2};
}

// A tensor that is dropped at the end.
class Owned {
 public:
  explicit Owned(PyObject* tensor) : tensor_(tensor) {}
  ~Owned() { Py_XDECREF(tensor_); }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  [[nodiscard]] PyObject* get() const { return tensor_; }
  [[nodiscard]] PyObject* release() { return std::exchange(tensor_, nullptr); }

 private:
  PyObject* tensor_;
};

// Where the values of a contiguous bfloat16 tensor on the CPU are; null where it is none.
void* values_of(PyObject* tensor) {
  DLTensor view;
  if (tensor == nullptr || !tensor::is_plain_tensor(tensor) || tensor::kind_of_tensor(tensor) != Kind::bf16 ||
      !tensor::view_on_cpu(tensor, view) || !tensor::is_contiguous(view)) {
    return nullptr;
  }
  return static_cast<char*>(view.data) + view.byte_offset;
}

// Values with which calls like one are tried.
class Trial {
 public:
  Trial(const Case& one, const PackedCall& call)
      : case_(one),
        bias_(one.has_bias ? tensor::new_empty(call.bias, std::array{one.outer}) : Py_NewRef(Py_None)),
        weight_(tensor::new_empty(call.input, std::array{one.outer, one.inner})),
        input_(make_input(call)),
        panels_(make_panels()),
        call_{Packs::linear, input_.get(), weight_.get(), bias_.get(), nullptr} {}

  // A block with which our kernels give the bits of torch's function, or nothing.
  std::optional<std::size_t> find_block() {
    // Sums to nothing show a wrong block in one of six results or more.
    constexpr std::int64_t enough = 256;
    const auto whole = static_cast<std::size_t>(case_.inner);
    std::vector<std::size_t> blocks{whole};
    for (const std::size_t block : {std::size_t{512}, std::size_t{1024}, std::size_t{256}, std::size_t{2048}}) {
      if (block < whole) blocks.push_back(block);
    }
    std::int64_t compared = 0;
    for (std::uint64_t seed = 1; !blocks.empty() && (compared < enough || seed <= 2); ++seed) {
      if (panels_.get() == nullptr || !fill(seed)) return std::nullopt;
      const Owned expected(call_plain(call_, weight_.get()));
      if (expected.get() == nullptr) return std::nullopt;
      std::erase_if(blocks, [&](std::size_t block) {
        const Owned made(multiply(block));
        return !are_same(made.get(), expected.get());
      });
      compared += tensor::count_elements(expected.get());
    }
    return blocks.empty() ? std::nullopt : std::optional(blocks.front());
  }

  // Are our kernels faster than torch's function, and than its library's packed weights? The shortest calls decide, of
  // some made in turn.
  bool pays(std::size_t block) {
    const Owned packed(operators_of(Packs::linear).pack == nullptr ? nullptr : pack(weight_.get(), call_));
    drop_error();
    if (PyErr_Occurred() != nullptr) return false;
    constexpr int most_rounds = 7;
    constexpr int fewest_rounds = 3;
    constexpr double long_enough = 0.03;  // seconds: of long calls fewer tell as much
    double plain = 1e9;
    double from_packed = 1e9;
    double from_panels = 1e9;
    double spent = 0;
    for (int i = 0; i < most_rounds && (i < fewest_rounds || spent < long_enough); ++i) {
      const double one = time_of([&] { return call_plain(call_, weight_.get()); });
      const double other = packed.get() == nullptr ? 1e9 : time_of([&] { return call_packed(call_, packed.get()); });
      const double ours = time_of([&] { return multiply(block); });
      if (one < 0 || other < 0 || ours < 0) return false;
      plain = std::min(plain, one);
      from_packed = std::min(from_packed, other);
      from_panels = std::min(from_panels, ours);
      spent += one + ours;
    }
    return from_panels * clearly < plain && from_panels < from_packed;
  }

 private:
  static PyObject* make_input(const PackedCall& call) {
    DLTensor view;
    if (!tensor::view_on_cpu(call.input, view)) return nullptr;
    const std::vector<std::int64_t> sizes(view.shape, view.shape + view.ndim);
    return tensor::new_empty(call.input, sizes);
  }

  PyObject* make_panels() {
    void* const weight = values_of(weight_.get());
    if (weight == nullptr) return nullptr;
    fill_with_sums_to_nothing(weight, case_.outer, case_.inner, false, 0);
    return weights::make_panels(weight_.get());
  }

  PyObject* multiply(std::size_t block) {
    return multiply_panels(call_, panels_.get(), case_.outer, case_.inner, block);
  }

  // At the second time denormals, which our kernels' instruction takes for zero; else a bias as small as the sums.
  bool fill(std::uint64_t seed) {
    auto* const input = static_cast<std::uint16_t*>(values_of(input_.get()));
    if (input == nullptr) return false;
    const bool denormal = seed == 2;
    const std::int64_t count = tensor::count_elements(input_.get());
    fill_with_sums_to_nothing(input, count / case_.inner, case_.inner, true, seed);
    if (denormal) {
      // Without signs, so that they do not add up to nothing.
      for (std::int64_t i = 0; i < count; ++i) input[i] &= 0x007f;
    }
    if (!case_.has_bias) return true;
    auto* const bias = static_cast<std::uint16_t*>(values_of(bias_.get()));
    if (bias == nullptr) return false;
    fill_with_noise(bias, case_.outer, seed);
    constexpr unsigned by_2_to_the_19th = 19U << 7U;
    for (std::int64_t i = 0; i < case_.outer; ++i) {
      bias[i] = denormal ? std::uint16_t{0} : static_cast<std::uint16_t>(bias[i] - by_2_to_the_19th);
    }
    return true;
  }

  Case case_;
  Owned bias_;
  Owned weight_;
  Owned input_;
  Owned panels_;
  PackedCall call_;
};

PyObject* contiguous(PyObject* input) { return PyObject_CallMethod(input, "contiguous", nullptr); }

}  // namespace

std::optional<PanelVerdict> known_verdict(const Entry& entry, const PackedCall& call) noexcept {
  const std::optional<Case> one = case_of(entry, call);
  if (!one) return std::nullopt;
  const auto found = verdicts().find(*one);
  return found == verdicts().end() ? std::nullopt : std::optional(found->second);
}

bool may_try_panels(const Entry& entry, const PackedCall& call) noexcept {
  return call.what == Packs::linear && kernels::can_multiply() && operators_of(call.what).plain != nullptr &&
         entry.elements >= worth_trying && entry.geometry.sizes.size() == 2 && entry.geometry.sizes[1] % 2 == 0 &&
         entry.geometry.strides[1] == 1 && case_of(entry, call).has_value();
}

std::optional<PanelVerdict> try_panels(const Entry& entry, const PackedCall& call) {
  const std::optional<Case> one = case_of(entry, call);
  if (!one) return std::nullopt;
  Trial trial(*one, call);
  const std::optional<std::size_t> block = trial.find_block();
  PanelVerdict verdict{false, block.value_or(0)};
  if (block) verdict.pays = assumed_packing() == Assumed::panels || trial.pays(*block);
  drop_error();
  if (PyErr_Occurred() != nullptr) return std::nullopt;
  return verdicts().insert_or_assign(*one, verdict).first->second;
}

void forget_panel_verdicts() noexcept { verdicts().clear(); }

PyObject* make_panels(PyObject* cast) {
  DLTensor view;
  const void* const values = values_of(cast);
  if (values == nullptr || !tensor::view_on_cpu(cast, view) || view.ndim != 2) return nullptr;
  const std::int64_t outer = view.shape[0];
  const std::int64_t inner = view.shape[1];
  PyObject* made = tensor::new_empty(cast, std::array{outer * inner});
  void* const target = values_of(made);
  if (target == nullptr) {
    Py_XDECREF(made);
    return nullptr;
  }
  const unsigned threads = tensor::torch_threads();
  without_gil([&] {
    kernels::arrange(values, static_cast<std::size_t>(outer), static_cast<std::size_t>(inner), target, threads);
  });
  return made;
}

PyObject* multiply_panels(const PackedCall& call, PyObject* panels, std::int64_t outer, std::int64_t inner,
                          std::size_t block) {
  DLTensor view;
  if (!tensor::view_on_cpu(call.input, view)) return nullptr;
  std::optional<Rows> rows = rows_of(view, inner);
  if (!rows || rows->count == 0) return nullptr;
  Owned evenly(nullptr);
  if (rows->step == 0) {
    PyObject* made = contiguous(call.input);
    PackedCall again = call;
    again.input = made;
    const bool usable = made != nullptr && values_of(made) != nullptr;
    PyObject* result = usable ? multiply_panels(again, panels, outer, inner, block) : nullptr;
    Py_XDECREF(made);
    return result;
  }
  std::array<std::int64_t, most_dimensions> sizes{};
  std::copy_n(view.shape, view.ndim, sizes.begin());
  sizes[static_cast<std::size_t>(view.ndim) - 1] = outer;
  Owned result(tensor::new_empty(call.input, std::span(sizes).first(static_cast<std::size_t>(view.ndim))));
  // Others may have run meanwhile, but nobody who changes what this call holds.
  const kernels::Product product{
      .input = static_cast<const char*>(view.data) + view.byte_offset,
      .input_step = static_cast<std::size_t>(rows->step),
      .rows = static_cast<std::size_t>(rows->count),
      .inner = static_cast<std::size_t>(inner),
      .block = block,
      .weight = values_of(panels),
      .outer = static_cast<std::size_t>(outer),
      .bias = call.bias == Py_None ? nullptr : values_of(call.bias),
      .result = values_of(result.get()),
  };
  if (product.result == nullptr || product.weight == nullptr) return nullptr;
  if (call.bias != Py_None && (product.bias == nullptr || tensor::count_elements(call.bias) != outer)) return nullptr;
  const unsigned threads = tensor::torch_threads();
  if (product.rows * product.inner * product.outer < gil_kept_below) {
    kernels::multiply(product, threads);
  } else {
    without_gil([&] { kernels::multiply(product, threads); });
  }
  return result.release();
}

}  // namespace habana_mp::weights

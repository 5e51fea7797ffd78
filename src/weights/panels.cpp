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

// Fewer values are not worth a measurement; more would take too much memory for one.
constexpr std::int64_t worth_trying = 1 << 10;
constexpr std::int64_t most_tried = std::int64_t{1} << 26;
// A trial that failed is made again so often.
constexpr std::uint32_t most_trials = 8;
// A weight's panels must be faster by this factor than the weight as it is: making them takes as long as some calls.
constexpr double clearly = 1.05;
// Below so many products of two numbers a call is over sooner than another thread could make use of the GIL.
constexpr std::size_t gil_kept_below = std::size_t{1} << 21;
constexpr std::int32_t most_dimensions = 8;
// Torch calls its library from 4096 products of two numbers on; some other version may from more.
constexpr std::int64_t small_product = 1 << 14;

// Calls of one kind: they sum in the same order, and take about as long. The library orders the sums of one row
// otherwise than those of several, and may order them by the number of its threads; torch has a loop of its own for the
// smallest products.
struct Case {
  std::int64_t outer;
  std::int64_t inner;
  std::size_t rows;  // the binary digits of their number; of small products the number itself
  std::size_t threads;
  bool has_bias;
  bool is_matrix;  // an input of two dimensions

  bool operator==(const Case&) const = default;
};
struct HashOfCase {
  std::size_t operator()(const Case& one) const noexcept {
    const auto outer = static_cast<std::size_t>(one.outer);
    const auto inner = static_cast<std::size_t>(one.inner);
    return ((outer * 1000003 + inner) * 1000003 + one.rows * 8 + one.threads * 4096) ^ (one.has_bias ? 1U : 0U) ^
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
  std::int64_t step = 0;  // from one to the next, in elements
};

// Nothing where these are no rows of that length, or lie in a way for which torch has other ways, that sum otherwise:
// the rows of a matrix must lie evenly, those of more dimensions one after the other.
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

std::optional<Case> case_of(const Entry& entry, const PackedCall& call) {
  DLTensor view;
  if (entry.geometry.sizes.size() != 2 || !tensor::view_on_cpu(call.input, view)) return std::nullopt;
  const std::int64_t outer = entry.geometry.sizes[0];
  const std::int64_t inner = entry.geometry.sizes[1];
  const std::optional<Rows> rows = rows_of(view, inner);
  if (!rows || rows->count == 0) return std::nullopt;
  constexpr std::size_t most_digits = 64;
  const auto count = static_cast<std::size_t>(rows->count);
  const auto digits = static_cast<std::size_t>(std::bit_width(count));
  const std::size_t kind = rows->count * inner * outer <= small_product ? most_digits + count : digits;
  return Case{outer, inner, kind, tensor::torch_threads(), call.bias != Py_None, view.ndim == 2};
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
        panels_(fill_weight()),
        call_{Packs::linear, input_.get(), weight_.get(), bias_.get(), nullptr} {}

  // Nothing where something failed: then nothing is known.
  std::optional<PanelVerdict> run() {
    if (panels_.get() == nullptr || values_of(input_.get()) == nullptr) return std::nullopt;
    std::vector<std::size_t> blocks = blocks_to_try();
    // Enough results to tell the blocks apart, then denormals.
    constexpr std::int64_t enough = 256;
    std::int64_t compared = 0;
    for (std::uint64_t seed = 1; !blocks.empty() && compared < enough; ++seed) {
      if (!compare(seed, false, blocks)) return std::nullopt;
      compared += std::min(rows(), different_rows) * std::min(case_.outer, different_rows);
    }
    if (!blocks.empty() && !compare(0, true, blocks)) return std::nullopt;
    // Where two are left they could not be told apart: who knows which of them is right.
    if (blocks.size() != 1) return PanelVerdict{false, 0};
    if (assumed_packing() == Assumed::panels) return PanelVerdict{true, blocks.front()};
    const std::optional<bool> faster = pays(blocks.front());
    return faster ? std::optional(PanelVerdict{*faster, blocks.front()}) : std::nullopt;
  }

 private:
  [[nodiscard]] std::int64_t rows() const { return tensor::count_elements(input_.get()) / case_.inner; }

  // What the library was seen to take, and half and twice of it.
  [[nodiscard]] std::vector<std::size_t> blocks_to_try() const {
    const auto whole = static_cast<std::size_t>(case_.inner);
    std::vector<std::size_t> blocks{whole};
    for (std::size_t block = smallest_block; block <= 2048 && block < whole; block *= 2) blocks.push_back(block);
    return blocks;
  }

  // Takes out the blocks with which our kernels give other bits than torch's function. False where something failed.
  bool compare(std::uint64_t seed, bool denormal, std::vector<std::size_t>& blocks) {
    if (!fill(seed, denormal)) return false;
    const Owned expected(call_plain(call_, weight_.get()));
    if (expected.get() == nullptr) return false;
    for (std::size_t i = blocks.size(); i-- > 0;) {
      const Owned made(multiply(blocks[i]));
      if (made.get() == nullptr) return false;
      if (!are_same(made.get(), expected.get())) blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(i));
    }
    return true;
  }

  // Are our kernels faster than torch's function, and than its library's packed weights? The shortest calls decide, of
  // some made in turn. Nothing where one fails.
  std::optional<bool> pays(std::size_t block) {
    const bool has_packed = operators_of(Packs::linear).pack != nullptr;
    const Owned packed(has_packed ? pack(weight_.get(), call_) : nullptr);
    if (has_packed && packed.get() == nullptr) return std::nullopt;
    constexpr int most_rounds = 7;
    constexpr int fewest_rounds = 3;
    constexpr double long_enough = 0.03;  // seconds: of long calls fewer tell as much
    double plain = 1e9;
    double from_packed = 1e9;
    double from_panels = 1e9;
    double spent = 0;
    for (int i = 0; i < most_rounds && (i < fewest_rounds || spent < long_enough); ++i) {
      const double one = time_of([&] { return call_plain(call_, weight_.get()); });
      if (one < 0) return std::nullopt;
      const double other = has_packed ? time_of([&] { return call_packed(call_, packed.get()); }) : from_packed;
      if (other < 0) return std::nullopt;
      const double ours = time_of([&] { return multiply(block); });
      if (ours < 0) return std::nullopt;
      plain = std::min(plain, one);
      from_packed = std::min(from_packed, other);
      from_panels = std::min(from_panels, ours);
      spent += one + ours;
    }
    return from_panels * clearly < plain && from_panels < from_packed;
  }

  static PyObject* make_input(const PackedCall& call) {
    DLTensor view;
    if (!tensor::view_on_cpu(call.input, view)) return nullptr;
    const std::vector<std::int64_t> sizes(view.shape, view.shape + view.ndim);
    return tensor::new_empty(call.input, sizes);
  }

  PyObject* fill_weight() {
    void* const weight = values_of(weight_.get());
    if (weight == nullptr) return nullptr;
    fill_with_sums_to_nothing(weight, case_.outer, case_.inner, false, 0);
    return make_panels(weight_.get());
  }

  PyObject* multiply(std::size_t block) {
    return multiply_panels(call_, panels_.get(), case_.outer, case_.inner, block);
  }

  // With denormals, which our kernels' instruction takes for zero, or with a bias as small as the sums.
  bool fill(std::uint64_t seed, bool denormal) {
    auto* const input = static_cast<std::uint16_t*>(values_of(input_.get()));
    fill_with_sums_to_nothing(input, rows(), case_.inner, true, seed);
    if (denormal) {
      // Without signs, so that they do not add up to nothing.
      const std::int64_t count = rows() * case_.inner;
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

}  // namespace

std::optional<PanelVerdict> known_verdict(const Entry& entry, const PackedCall& call) noexcept {
  const std::optional<Case> one = case_of(entry, call);
  if (!one) return std::nullopt;
  const auto found = verdicts().find(*one);
  return found == verdicts().end() ? std::nullopt : std::optional(found->second);
}

bool lies_in_rows(PyObject* input) noexcept {
  DLTensor view;
  if (!tensor::view_on_cpu(input, view) || view.ndim < 2) return false;
  return rows_of(view, view.shape[view.ndim - 1]).has_value();
}

bool may_try_panels(const Entry& entry, const PackedCall& call) noexcept {
  return kernels::can_multiply() && entry.probed < most_trials && entry.elements >= worth_trying &&
         entry.elements <= most_tried && entry.geometry.sizes.size() == 2 && entry.geometry.sizes[1] % 2 == 0 &&
         entry.geometry.strides[1] == 1 && case_of(entry, call).has_value();
}

std::optional<PanelVerdict> try_panels(Entry& entry, const PackedCall& call) {
  const std::optional<Case> one = case_of(entry, call);
  if (!one) return std::nullopt;
  Trial trial(*one, call);
  const std::optional<PanelVerdict> verdict = trial.run();
  drop_error();
  if (verdict && PyErr_Occurred() == nullptr) return verdicts().insert_or_assign(*one, *verdict).first->second;
  ++entry.probed;
  return std::nullopt;
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
  const std::optional<Rows> rows = rows_of(view, inner);
  if (!rows || rows->count == 0) return nullptr;
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

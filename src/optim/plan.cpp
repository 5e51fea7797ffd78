#include "optim/plan.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <optional>
#include <span>

#include "errors.hpp"
#include "gil.hpp"
#include "host/held_memory.hpp"
#include "host/inside.hpp"
#include "host/tensors.hpp"
#include "instances.hpp"
#include "tensor/cast.hpp"

namespace py = pybind11;

namespace habana_mp::optim {
namespace {

using kernels::Float;

constexpr std::int32_t most_dimensions = 64;
constexpr std::size_t most_states = 3;

// A range of memory that is part of the step.
struct Extent {
  const char* begin;
  const char* end;
  bool written;
};

class View {
 public:
  // Returns nothing if the tensor's memory cannot be used directly: a negative view, a tensor of inference mode, a
  // wrapper of torch.func, a subclass, another device, or no memory at all.
  static std::optional<View> of(py::handle tensor) {
    if (!host::is_plain_tensor(tensor.ptr()) || is_negative(tensor) || is_of_inference_mode(tensor)) {
      return std::nullopt;
    }
    View view;
    if (!host::view_of(tensor.ptr(), view.tensor_)) return std::nullopt;
    const DLTensor& seen = view.tensor_;
    if (seen.device.device_type != kDLCPU || seen.dtype.lanes != 1 || seen.ndim > most_dimensions) {
      return std::nullopt;
    }
    for (std::int32_t i = 0; i < seen.ndim; ++i) view.count_ *= static_cast<std::size_t>(seen.shape[i]);
    if (view.count_ != 0 && seen.data == nullptr) return std::nullopt;
    return view;
  }

  [[nodiscard]] std::size_t count() const { return count_; }
  [[nodiscard]] char* data() const { return static_cast<char*>(tensor_.data) + tensor_.byte_offset; }
  [[nodiscard]] bool is(DLDataTypeCode code, int bits) const {
    return tensor_.dtype.code == code && tensor_.dtype.bits == bits;
  }
  [[nodiscard]] bool is_float32() const { return is(kDLFloat, 32); }

  // True if each element has its own memory and there are no gaps.
  [[nodiscard]] bool is_dense() const {
    std::array<std::int32_t, most_dimensions> axes{};
    const auto used = std::span(axes).first(static_cast<std::size_t>(tensor_.ndim));
    std::iota(used.begin(), used.end(), 0);
    std::sort(used.begin(), used.end(), [this](std::int32_t a, std::int32_t b) { return stride(a) < stride(b); });
    std::int64_t expected = 1;
    return count_ == 0 || std::all_of(used.begin(), used.end(), [&](std::int32_t axis) {
             const bool follows = tensor_.shape[axis] == 1 || stride(axis) == expected;
             expected *= tensor_.shape[axis];
             return follows;
           });
  }

  [[nodiscard]] bool has_layout_of(const View& other) const {
    if (tensor_.ndim != other.tensor_.ndim) return false;
    for (std::int32_t i = 0; i < tensor_.ndim; ++i) {
      if (tensor_.shape[i] != other.tensor_.shape[i]) return false;
      if (count_ != 0 && tensor_.shape[i] != 1 && stride(i) != other.stride(i)) return false;
    }
    return true;
  }

  // Returns the range from the first to the last byte, whatever the strides.
  [[nodiscard]] Extent extent(bool written) const {
    if (count_ == 0) return {nullptr, nullptr, written};
    std::int64_t reach = 1;
    for (std::int32_t i = 0; i < tensor_.ndim; ++i) reach += (tensor_.shape[i] - 1) * std::abs(stride(i));
    return {data(), data() + reach * (tensor_.dtype.bits / 8), written};
  }

 private:
  static bool is_negative(py::handle tensor) {
    return host::can_look_inside() ? host::is_negative(tensor.ptr()) : !host::has_no_negative_bit(tensor.ptr());
  }
  // Such a tensor has no version counter.
  static bool is_of_inference_mode(py::handle tensor) {
    return host::can_look_inside() ? host::snapshot_of(tensor.ptr()).counter == nullptr
                                   : !host::is_no_inference_tensor(tensor.ptr());
  }

  [[nodiscard]] std::int64_t stride(std::int32_t axis) const {
    if (tensor_.strides != nullptr) return tensor_.strides[axis];
    return std::accumulate(tensor_.shape + axis + 1, tensor_.shape + tensor_.ndim, std::int64_t{1},
                           std::multiplies<>());
  }

  DLTensor tensor_{};
  std::size_t count_ = 1;
};

bool is_any_tensor(py::handle object) { return host::is_tensor(object.ptr()); }

// True if a range that is written overlaps another range.
bool any_overlap(std::vector<Extent>& extents) {
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  const char* end = nullptr;
  const char* written_end = nullptr;
  for (const Extent& extent : extents) {
    if (extent.begin == extent.end) continue;
    if (extent.begin < (extent.written ? end : written_end)) return true;
    end = std::max(end, extent.end);
    if (extent.written) written_end = std::max(written_end, extent.end);
  }
  return false;
}

template <class Taken, class Numbers>
auto weights_of(const std::vector<Taken>& taken, const Numbers& numbers) {
  std::vector<kernels::Weight<decltype(numbers(taken.front()))>> weights;
  weights.reserve(taken.size());
  for (const Taken& one : taken) {
    weights.push_back({numbers(one), one.arrays, one.count, one.lower, one.lower_type});
  }
  return weights;
}

// The columns of a plan.
enum Column : std::uint8_t { params_column, grads_column, steps_column, lowers_column, first_state };

bool are_same(const kernels::StepArrays& one, const kernels::StepArrays& other) {
  return one.param == other.param && one.grad == other.grad && one.first == other.first && one.second == other.second &&
         one.largest == other.largest;
}

// True if the step takes long enough to let other threads run meanwhile. Each tensor has to be held then, which also
// takes time.
bool is_worth_releasing(std::size_t weights, std::size_t values) {
  constexpr std::size_t fewest_values = std::size_t{1} << 12;
  return values >= static_cast<std::size_t>(tensor::gil_kept_below) && values >= weights * fewest_values;
}

}  // namespace

// Examines the tensors of weights as they are now.
class StepPlan::Looking {
 public:
  explicit Looking(const StepPlan& plan)
      : columns_(plan.kept_), writes_grads_(plan.writes_grads_), closed_(!host::can_view() || host::is_traced()) {}

  // Returns nothing if the weight cannot be taken. Runs no Python code if it can.
  std::optional<Taken> at(std::size_t place) {
    Taken one{.place = place,
              .arrays = {},
              .count = 0,
              .step = nullptr,
              .has_lower = false,
              .lower = nullptr,
              .lower_type = Float::bf16};
    std::array<float**, most_states> targets = {&one.arrays.first, &one.arrays.second, &one.arrays.largest};
    const std::optional<View> param = view_of(columns_[params_column][place]);
    bool fits = param && param->is_float32() && param->is_dense();
    const auto see = [&](py::handle tensor, bool written) -> float* {
      const std::optional<View> view = view_of(tensor);
      if (view) extents_.push_back(view->extent(written));
      fits = fits && view && view->is_float32() && view->has_layout_of(*param);
      return view ? reinterpret_cast<float*>(view->data()) : nullptr;
    };
    if (param) {
      extents_.push_back(param->extent(true));
      one.arrays.param = reinterpret_cast<float*>(param->data());
      one.count = param->count();
    }
    one.arrays.grad = see(columns_[grads_column][place], writes_grads_);
    for (std::size_t k = first_state; k < columns_.size(); ++k) {
      *targets[k - first_state] = see(columns_[k][place], true);
    }
    if (!columns_[steps_column].empty()) {
      const std::optional<View> step = view_of(columns_[steps_column][place]);
      if (step) extents_.push_back(step->extent(true));
      fits = fits && step && step->is_float32() && step->count() == 1;
      if (fits) one.step = reinterpret_cast<float*>(step->data());
    }
    if (!fits) return std::nullopt;
    const py::handle lower = columns_[lowers_column][place];
    if (const std::optional<View> view = lower.is_none() ? std::nullopt : View::of(lower)) {
      const bool is_bf16 = view->is(kDLBfloat, 16);
      if (view->has_layout_of(*param) && (is_bf16 || view->is(kDLFloat, 16))) {
        one.has_lower = true;
        one.lower = view->data();
        one.lower_type = is_bf16 ? Float::bf16 : Float::f16;
        extents_.push_back(view->extent(true));
      }
    }
    return one;
  }

  // True if one of these weights shares memory with another one, or with a tensor that cannot be viewed.
  bool any_share(const std::vector<Taken>& taken) {
    std::sort(unseen_.begin(), unseen_.end());
    const auto is_unseen = [&](py::handle tensor) {
      return is_any_tensor(tensor) &&
             std::binary_search(unseen_.begin(), unseen_.end(), host::storage_of(tensor.ptr()));
    };
    const auto shares_with_unseen = [&](const Taken& one) {
      return std::any_of(columns_.begin(), columns_.end(),
                         [&](const py::tuple& column) { return !column.empty() && is_unseen(column[one.place]); });
    };
    return any_overlap(extents_) || (!unseen_.empty() && std::any_of(taken.begin(), taken.end(), shares_with_unseen));
  }

 private:
  std::optional<View> view_of(py::handle tensor) {
    std::optional<View> view = closed_ ? std::nullopt : View::of(tensor);
    if (!view && !closed_ && is_any_tensor(tensor) && host::can_look_inside()) {
      if (const char* storage = host::storage_of(tensor.ptr())) unseen_.push_back(storage);
    }
    return view;
  }

  const std::vector<py::tuple>& columns_;
  bool writes_grads_;
  bool closed_;
  std::vector<Extent> extents_;
  std::vector<const char*> unseen_;  // storages of the tensors that cannot be viewed
};

bool StepPlan::Taken::operator==(const Taken& other) const {
  return are_same(arrays, other.arrays) && count == other.count && step == other.step && has_lower == other.has_lower &&
         lower == other.lower && lower_type == other.lower_type;
}

StepPlan::StepPlan(const py::list& params, const py::list& grads, const py::list& states, const py::list& steps,
                   const py::list& lowers, bool writes_grads)
    : writes_grads_(writes_grads) {
  Reserve::fill();
  const std::size_t count = params.size();
  std::vector<py::tuple> columns;
  for (const py::handle column : states) columns.emplace_back(py::reinterpret_borrow<py::list>(column));
  const auto has_other_length = [count](const auto& column) { return column.size() != count; };
  if (has_other_length(grads) || has_other_length(lowers) || columns.size() > most_states ||
      std::any_of(columns.begin(), columns.end(), has_other_length) || (!steps.empty() && has_other_length(steps))) {
    throw py::value_error("the lists of a step must be as long as that of the parameters");
  }
  kept_ = {py::tuple(params), py::tuple(grads), py::tuple(steps), py::tuple(lowers)};
  kept_.insert(kept_.end(), columns.begin(), columns.end());
  Looking looking(*this);
  for (std::size_t i = 0; i < count; ++i) {
    if (const std::optional<Taken> one = looking.at(i)) {
      taken_.push_back(*one);
      if (one->has_lower) lowered_.push_back(i);
    } else {
      left_out_.push_back(i);
    }
  }
  // If arrays share memory, the order of the updates matters, and only torch's own code follows it.
  if (looking.any_share(taken_)) {
    taken_.clear();
    lowered_.clear();
    left_out_.resize(count);
    std::iota(left_out_.begin(), left_out_.end(), std::size_t{0});
  }
}

void StepPlan::look_again() {
  const std::size_t before = changed_.size();
  // If a tensor can no longer be viewed, finding that out may have run Python code, so look again.
  for (bool are_alike = false; !are_alike;) {
    are_alike = true;
    Looking looking(*this);
    std::erase_if(taken_, [&](const Taken& one) {
      if (looking.at(one.place) == one) return false;
      changed_.push_back(one.place);
      are_alike = false;
      return true;
    });
  }
  if (changed_.size() == before) return;
  std::sort(changed_.begin(), changed_.end());
  left_out_.insert(left_out_.end(), changed_.begin(), changed_.end());
  std::sort(left_out_.begin(), left_out_.end());
  std::erase_if(lowered_,
                [this](std::size_t place) { return std::binary_search(changed_.begin(), changed_.end(), place); });
}

template <class Kernel>
void StepPlan::run(const Kernel& kernel) {
  std::size_t values = 0;
  for (const Taken& one : taken_) values += one.count;
  std::vector<host::HeldMemory> held;
  if (is_worth_releasing(taken_.size(), values)) {
    held.reserve(taken_.size() * kept_.size());
    for (const Taken& one : taken_) {
      for (const py::tuple& column : kept_) {
        PyObject* const tensor = column.empty() ? Py_None : PyTuple_GET_ITEM(column.ptr(), one.place);
        if (tensor != Py_None) held.emplace_back(tensor);
      }
    }
  }
  if (held.empty() || !std::all_of(held.begin(), held.end(), [](const auto& one) { return static_cast<bool>(one); })) {
    kernel();
    return;
  }
  std::exception_ptr failure;
  without_gil([&] {
    try {
      kernel();
    } catch (...) {
      failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
}

template <class Rule>
void StepPlan::step_counted(const Rule& rule) {
  const unsigned threads = host::torch_threads();
  look_again();
  auto weights = weights_of(taken_, [&](const Taken& one) { return rule.numbers(*one.step + 1.0F); });
  const auto count = [this](float by) {
    for (const Taken& one : taken_) *one.step += by;
  };
  count(1.0F);
  try {
    run([&] { kernels::step(std::span(weights), threads); });
  } catch (...) {
    count(-1.0F);
    throw;
  }
  taken_.clear();
}

void StepPlan::step(const kernels::Adam& adam) { step_counted(adam); }
void StepPlan::step(const kernels::Adagrad& adagrad) { step_counted(adagrad); }
void StepPlan::step(const kernels::Lamb& lamb) { step_counted(lamb); }

void StepPlan::step(const kernels::Sgd& sgd, const py::list& begins, const kernels::Lars& lars,
                    const py::list& scaled) {
  const auto flags_in = [](const py::list& list) {
    std::vector<bool> flags;
    for (const py::handle one : list) flags.push_back(one.cast<bool>());
    return flags;
  };
  const std::vector<bool> are_first = flags_in(begins);
  const std::vector<bool> are_scaled = flags_in(scaled);
  const std::size_t count = kept_[params_column].size();
  if (are_first.size() != count || (!are_scaled.empty() && are_scaled.size() != count)) {
    throw py::value_error("the lists of a step must be as long as that of the parameters");
  }
  const unsigned threads = host::torch_threads();
  look_again();
  auto weights = weights_of(taken_, [&](const Taken& one) { return sgd.numbers(are_first[one.place]); });
  std::vector<kernels::Weight<kernels::SgdNumbers>*> chosen;
  for (std::size_t i = 0; i < taken_.size(); ++i) {
    if (!are_scaled.empty() && are_scaled[taken_[i].place]) chosen.push_back(&weights[i]);
  }
  run([&] {
    if (!chosen.empty()) kernels::scale_gradients(lars, chosen, threads);
    kernels::step(std::span(weights), threads);
  });
  taken_.clear();
}

}  // namespace habana_mp::optim

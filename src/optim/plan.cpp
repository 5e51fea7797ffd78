#include "optim/plan.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <span>

#include "errors.hpp"
#include "gil.hpp"
#include "host/inside.hpp"
#include "host/torch_api.hpp"
#include "tensor/cast.hpp"

namespace py = pybind11;

namespace habana_mp::optim {
namespace {

using kernels::Float;

constexpr std::int32_t most_dimensions = 64;
constexpr std::size_t most_states = 3;

// A stretch of memory that takes part.
struct Extent {
  const char* begin;
  const char* end;
  bool written;
};

class View {
 public:
  // Nothing where the tensor's memory is not what it seems: a negative view, one of torch.func's wrappers, a subclass,
  // another device, no memory at all.
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

  // Each element in memory of its own, and no gap between them.
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

  [[nodiscard]] bool lies_as(const View& other) const {
    if (tensor_.ndim != other.tensor_.ndim) return false;
    for (std::int32_t i = 0; i < tensor_.ndim; ++i) {
      if (tensor_.shape[i] != other.tensor_.shape[i]) return false;
      if (count_ != 0 && tensor_.shape[i] != 1 && stride(i) != other.stride(i)) return false;
    }
    return true;
  }

  // From the first to the last byte, whatever the strides.
  [[nodiscard]] Extent extent(bool written) const {
    if (count_ == 0) return {nullptr, nullptr, written};
    std::int64_t reach = 1;
    for (std::int32_t i = 0; i < tensor_.ndim; ++i) reach += (tensor_.shape[i] - 1) * std::abs(stride(i));
    return {data(), data() + reach * (tensor_.dtype.bits / 8), written};
  }

 private:
  static bool is_negative(py::handle tensor) {
    return host::can_look_inside() ? host::is_negative(tensor.ptr()) : is_true(host::api.is_neg, tensor);
  }
  // Such a tensor has no version.
  static bool is_of_inference_mode(py::handle tensor) {
    return host::can_look_inside() ? host::snapshot_of(tensor.ptr()).counter == nullptr
                                   : is_true(host::api.is_inference, tensor);
  }
  static bool is_true(PyCFunction method, py::handle tensor) {
    const Owned answer(method(tensor.ptr(), nullptr));
    if (!answer) clear_error();
    return answer.get() != Py_False;
  }

  [[nodiscard]] std::int64_t stride(std::int32_t axis) const {
    if (tensor_.strides != nullptr) return tensor_.strides[axis];
    return std::accumulate(tensor_.shape + axis + 1, tensor_.shape + tensor_.ndim, std::int64_t{1},
                           std::multiplies<>());
  }

  DLTensor tensor_{};
  std::size_t count_ = 1;
};

bool is_any_tensor(py::handle object) { return PyType_IsSubtype(Py_TYPE(object.ptr()), host::api.tensor) != 0; }

// Does a stretch that is written overlap another one?
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

template <class Weights>
void run(Weights&& weights) {
  const unsigned threads = host::torch_threads();
  without_gil([&] { kernels::step(std::span(weights), threads); });
}

}  // namespace

StepPlan::StepPlan(const py::list& params, const py::list& grads, const py::list& states, const py::list& steps,
                   const py::list& lowers, bool writes_grads) {
  const std::size_t count = params.size();
  std::vector<py::tuple> columns;
  for (const py::handle column : states) columns.emplace_back(py::reinterpret_borrow<py::list>(column));
  const auto wrong_in_bf16 = [count](const auto& column) { return column.size() != count; };
  if (wrong_in_bf16(grads) || wrong_in_bf16(lowers) || columns.size() > most_states ||
      std::any_of(columns.begin(), columns.end(), wrong_in_bf16) || (!steps.empty() && wrong_in_bf16(steps))) {
    throw py::value_error("the lists of a step must be as long as that of the parameters");
  }
  kept_ = {py::tuple(params), py::tuple(grads), py::tuple(steps), py::tuple(lowers)};
  kept_.insert(kept_.end(), columns.begin(), columns.end());

  std::vector<Extent> extents;
  std::vector<const char*> unseen;  // storages of what cannot be viewed
  const bool closed = !host::can_view() || host::is_traced();
  const auto view_of = [&](py::handle tensor) {
    std::optional<View> view = closed ? std::nullopt : View::of(tensor);
    if (!view && !closed && is_any_tensor(tensor) && host::can_look_inside()) {
      if (const char* storage = host::storage_of(tensor.ptr())) unseen.push_back(storage);
    }
    return view;
  };
  for (std::size_t i = 0; i < count; ++i) {
    Taken one{.place = i, .arrays = {}, .count = 0, .step = nullptr, .lower = nullptr, .lower_type = Float::bf16};
    std::array<float**, most_states> targets = {&one.arrays.first, &one.arrays.second, &one.arrays.largest};
    const std::optional<View> param = view_of(kept_[0][i]);
    bool fits = param && param->is_float32() && param->is_dense();
    const auto see = [&](py::handle tensor, bool written) -> float* {
      const std::optional<View> view = view_of(tensor);
      if (view) extents.push_back(view->extent(written));
      fits = fits && view && view->is_float32() && view->lies_as(*param);
      return view ? reinterpret_cast<float*>(view->data()) : nullptr;
    };
    if (param) {
      extents.push_back(param->extent(true));
      one.arrays.param = reinterpret_cast<float*>(param->data());
      one.count = param->count();
    }
    one.arrays.grad = see(kept_[1][i], writes_grads);
    for (std::size_t k = 0; k < columns.size(); ++k) *targets[k] = see(columns[k][i], true);
    if (!steps.empty()) {
      const std::optional<View> step = view_of(kept_[2][i]);
      if (step) extents.push_back(step->extent(true));
      fits = fits && step && step->is_float32() && step->count() == 1;
      if (fits) one.step = reinterpret_cast<float*>(step->data());
    }
    if (!fits) {
      left_out_.push_back(i);
      continue;
    }
    if (const py::object lower = kept_[3][i]; !lower.is_none()) {
      const std::optional<View> view = View::of(lower);
      const bool is_bf16 = view && view->is(kDLBfloat, 16);
      if (view && view->lies_as(*param) && (is_bf16 || view->is(kDLFloat, 16))) {
        one.lower = view->data();
        one.lower_type = is_bf16 ? Float::bf16 : Float::f16;
        extents.push_back(view->extent(true));
        lowered_.push_back(i);
      }
    }
    taken_.push_back(one);
  }
  std::sort(unseen.begin(), unseen.end());
  const auto is_unseen = [&](py::handle tensor) {
    return is_any_tensor(tensor) && std::binary_search(unseen.begin(), unseen.end(), host::storage_of(tensor.ptr()));
  };
  const auto shares_with_unseen = [&](const Taken& one) {
    return std::any_of(kept_.begin(), kept_.end(),
                       [&](const py::tuple& column) { return !column.empty() && is_unseen(column[one.place]); });
  };
  // Then order matters, which only torch's own code has.
  if (any_overlap(extents) || (!unseen.empty() && std::any_of(taken_.begin(), taken_.end(), shares_with_unseen))) {
    taken_.clear();
    lowered_.clear();
    left_out_.resize(count);
    std::iota(left_out_.begin(), left_out_.end(), std::size_t{0});
  }
}

template <class Rule>
void StepPlan::step_counted(const Rule& rule) const {
  run(weights_of(taken_, [&](const Taken& one) {
    *one.step += 1.0F;
    return rule.numbers(*one.step);
  }));
}

void StepPlan::step(const kernels::Adam& adam) const { step_counted(adam); }
void StepPlan::step(const kernels::Adagrad& adagrad) const { step_counted(adagrad); }
void StepPlan::step(const kernels::Lamb& lamb) const { step_counted(lamb); }

void StepPlan::step(const kernels::Sgd& sgd, const py::list& begins, const kernels::Lars& lars,
                    const py::list& scaled) const {
  auto weights = weights_of(taken_, [&](const Taken& one) { return sgd.numbers(begins[one.place].cast<bool>()); });
  if (!scaled.empty()) {
    std::vector<kernels::Weight<kernels::SgdNumbers>*> chosen;
    for (std::size_t i = 0; i < taken_.size(); ++i) {
      if (scaled[taken_[i].place].cast<bool>()) chosen.push_back(&weights[i]);
    }
    const unsigned threads = host::torch_threads();
    without_gil([&] { kernels::scale_gradients(lars, chosen, threads); });
  }
  run(weights);
}

}  // namespace habana_mp::optim

#include "tensor/cast.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "gil.hpp"
#include "kernels/cast.hpp"
#include "tensor/inside.hpp"
#include "tensor/thread_flag.hpp"
#include "tensor/torch_library.hpp"

namespace habana_mp::tensor {

namespace {

// Below this many elements the kernels never use a second thread, so torch need not be asked how many there are.
constexpr std::int64_t parallel_from = 1 << 16;

PyObject* recorded_cast = nullptr;  // owned

PyObject* dtype_of(Kind kind) {
  return kind == Kind::bf16 ? api.bfloat16 : (kind == Kind::f16 ? api.float16 : api.float32);
}

PyObject* cast_by_torch(PyObject* tensor, Kind to) {
  if (is_plain_tensor(tensor)) {
    PyCFunction function = to == Kind::bf16 ? api.to_bfloat16 : (to == Kind::f16 ? api.to_float16 : api.to_float32);
    static PyObject* const no_arguments = PyTuple_New(0);
    return reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void*>(function))(tensor, no_arguments, nullptr);
  }
  // A subclass may have its own.
  return PyObject_CallMethod(tensor, to == Kind::bf16 ? "bfloat16" : (to == Kind::f16 ? "half" : "float"), nullptr);
}

// They answer in 2 ns what their Python faces answer in 60; where a torch does not have them the Python faces are
// asked.
struct Symbols {
  bool (*any_modes_set)(bool) = nullptr;            // c10::impl::TorchDispatchModeTLS::any_modes_set(bool)
  const void* const* (*tracing_state)() = nullptr;  // const std::shared_ptr<TracingState>& getTracingState()
  bool (*is_grad_enabled)() = nullptr;              // c10::GradMode::is_enabled()
  bool (*requires_grad)(const void*) = nullptr;     // c10::TensorImpl::requires_grad() const
  bool (*function_mode_enabled)() = nullptr;        // at::impl::torch_function_mode_enabled()
  int (*get_num_threads)() = nullptr;               // at::get_num_threads()
  KeyFlag functorch;
  KeyFlag functionalize;
  KeyFlag pre_dispatch;

  Symbols() {
    const TorchLibrary c10("libc10.so");
    c10.find("_ZN3c104impl20TorchDispatchModeTLS13any_modes_setEb", any_modes_set);
    c10.find("_ZN3c108GradMode10is_enabledEv", is_grad_enabled);
    c10.find("_ZNK3c1010TensorImpl13requires_gradEv", requires_grad);
    const TorchLibrary cpu("libtorch_cpu.so");
    cpu.find("_ZN5torch3jit6tracer15getTracingStateEv", tracing_state);
    cpu.find("_ZN2at4impl27torch_function_mode_enabledEv", function_mode_enabled);
    cpu.find("_ZN2at15get_num_threadsEv", get_num_threads);
    if (api.functorch_number < 0) return;
    functorch = included_key(static_cast<std::uint16_t>(api.functorch_number));
    functionalize = included_key(static_cast<std::uint16_t>(api.functionalize_number));
    pre_dispatch = included_key(static_cast<std::uint16_t>(api.pre_dispatch_number));
  }
};

const Symbols& symbols() {
  static const Symbols found;
  return found;
}

bool is_true(PyObject* answer, bool when_failed) {
  if (answer == nullptr) {
    PyErr_Clear();
    return when_failed;
  }
  const int truth = PyObject_IsTrue(answer);
  Py_DECREF(answer);
  if (truth < 0) PyErr_Clear();
  return truth < 0 ? when_failed : truth != 0;
}

bool in_forward_ad() {
  // torch.autograd.forward_ad keeps its level in a global of the module: -1 outside of every level.
  static PyObject* const name = PyUnicode_InternFromString("_current_level");
  static PyObject* const outside = PyLong_FromLong(-1);  // as a rule the only object with this value
  PyObject* level = PyDict_GetItemWithError(api.forward_ad_namespace, name);
  if (level == outside) return false;
  if (level == nullptr) {
    PyErr_Clear();
    return true;
  }
  const long value = PyLong_AsLong(level);
  if (value == -1 && PyErr_Occurred() != nullptr) PyErr_Clear();
  return value != -1;
}

bool is_included(const KeyFlag& flag, PyObject* key) {
  return flag.is_known() ? flag.is_on() : is_true(PyObject_CallOneArg(api.is_key_included, key), true);
}

// Is torch.func at work in this thread?
bool in_transform() { return is_included(symbols().functorch, api.functorch_key); }

// Is functionalization? Under both, memory that is asked for may come wrapped.
bool in_functionalization() { return is_included(symbols().functionalize, api.functionalize_key); }

// Does a tracer record operations as they are called, before they are dispatched? It is no mode for the dispatcher.
bool is_recorded_as_called() { return is_included(symbols().pre_dispatch, api.pre_dispatch_key); }

// Might the gradient of a recorded cast have another layout than the tensor? The backward of torch's cast refuses it.
bool may_change_layout(PyObject* tensor, const CastResult& seen) {
  return seen.by_sparse && requires_grad(tensor) && !is_traced();
}

// A cast that nobody but the caller has to see: allocated past torch's dispatcher, filled by our kernel. Null without
// an exception where this way is closed.
PyObject* cast_by_kernel(PyObject* tensor, Kind from, Kind to, std::int64_t count) {
  DLTensor source;
  if (!view_on_cpu(tensor, source) || !is_contiguous(source)) return nullptr;
  void* values = nullptr;
  PyObject* made = allocate_like(source, to, values);
  if (made != nullptr) convert(static_cast<const char*>(source.data) + source.byte_offset, from, values, to, count);
  return made;
}

}  // namespace

bool is_cast_in_graph(PyObject* tensor) noexcept {
  return can_look_inside() && is_plain_tensor(tensor) && !is_off_cpu(tensor) && requires_grad(tensor) &&
         grad_is_enabled() && !is_traced() && !is_negative(tensor);
}

bool is_watched(PyObject* tensor, CastResult& seen) {
  if (grad_is_enabled() && requires_grad(tensor)) {
    seen.recorded = true;
    return true;
  }
  // A view of a negative tensor ignores that bit.
  if (is_traced()) return true;
  return can_look_inside() ? is_negative(tensor) : is_true(api.is_neg(tensor, nullptr), true);
}

void convert(const void* source, Kind from, void* target, Kind to, std::int64_t count) {
  const auto values = static_cast<std::size_t>(count);
  if (count < parallel_from) {
    kernels::cast(source, float_of(from), target, float_of(to), values, 1);
    return;
  }
  const unsigned threads = torch_threads();
  without_gil([&] { kernels::cast(source, float_of(from), target, float_of(to), values, threads); });
}

void set_recorded_cast(PyObject* function) noexcept {
  PyObject* const former = std::exchange(recorded_cast, Py_XNewRef(function));
  Py_XDECREF(former);
}

PyObject* cast_in_block(PyObject* tensor, Kind to) noexcept {
  Geometry geometry;
  CastResult ignored;
  if (!can_look_inside() || !is_plain_tensor(tensor)) return nullptr;
  const Kind from = kind_of_tensor(tensor);
  const std::int64_t count = count_elements(tensor);
  if (!is_floating(from) || from == to || !is_block(bytes_as(to, count))) return nullptr;
  if (is_watched(tensor, ignored) || !read_geometry(tensor, geometry) || !geometry.is_dense()) return nullptr;
  void* values = nullptr;
  PyObject* made = tensor_in_block(geometry, to, values);
  if (made != nullptr) convert(geometry.values, from, values, to, count);
  return made;
}

bool is_intercepted() noexcept {
  const Symbols& known = symbols();
  const bool modes = known.any_modes_set != nullptr ? known.any_modes_set(false)
                                                    : is_true(PyObject_CallNoArgs(api.dispatch_stack_length), true);
  if (modes) return true;
  const bool tracing = known.tracing_state != nullptr ? *known.tracing_state() != nullptr
                                                      : is_true(PyObject_CallNoArgs(api.tracing_state), true);
  return tracing || in_transform() || in_functionalization() || is_recorded_as_called();
}

bool is_recorded_by_torch() noexcept {
  const Symbols& known = symbols();
  if (known.any_modes_set == nullptr || known.tracing_state == nullptr) return is_intercepted();
  return *known.tracing_state() != nullptr || is_recorded_as_called() ||
         (known.any_modes_set(false) && !known.any_modes_set(true));
}

bool is_traced() noexcept { return in_forward_ad() || is_intercepted(); }

bool is_transformed() noexcept { return in_forward_ad() || in_transform(); }

bool grad_is_enabled() noexcept {
  const Symbols& known = symbols();
  return known.is_grad_enabled != nullptr ? known.is_grad_enabled()
                                          : is_true(api.is_grad_enabled(nullptr, nullptr), true);
}

unsigned torch_threads() noexcept {
  const Symbols& known = symbols();
  if (known.get_num_threads != nullptr) return static_cast<unsigned>(std::max(1, known.get_num_threads()));
  PyObject* answer = PyObject_CallNoArgs(api.get_num_threads);
  const long threads = answer == nullptr ? 1 : PyLong_AsLong(answer);
  Py_XDECREF(answer);
  if (PyErr_Occurred() != nullptr) PyErr_Clear();
  return threads < 1 ? 1U : static_cast<unsigned>(threads);
}

kernels::Float float_of(Kind kind) noexcept {
  switch (kind) {
    case Kind::bf16:
      return kernels::Float::bf16;
    case Kind::f16:
      return kernels::Float::f16;
    default:
      return kernels::Float::f32;
  }
}

bool function_mode_is_on() noexcept {
  const Symbols& known = symbols();
  if (known.function_mode_enabled != nullptr) return known.function_mode_enabled();
  return is_true(PyObject_CallNoArgs(api.is_function_mode_on), false);
}

bool holds_subclass(PyObject* const* values, Py_ssize_t count) noexcept {
  const auto is_subclass = [](PyObject* value) {
    return !is_plain_tensor(value) && PyObject_TypeCheck(value, api.tensor_base) != 0;
  };
  return std::any_of(values, values + count, [&](PyObject* value) {
    if (PyList_Check(value)) return PyList_GET_SIZE(value) != 0 && is_subclass(PyList_GET_ITEM(value, 0));
    if (PyTuple_Check(value)) return PyTuple_GET_SIZE(value) != 0 && is_subclass(PyTuple_GET_ITEM(value, 0));
    return is_subclass(value);
  });
}

bool has_torch_function(PyObject* const* values, Py_ssize_t count) noexcept {
  const auto has = [](PyObject* tensors) {
    return tensors != nullptr && is_true(PyObject_CallOneArg(api.has_torch_function, tensors), false);
  };
  PyObject* all = PyTuple_New(count);
  for (Py_ssize_t i = 0; all != nullptr && i < count; ++i) PyTuple_SET_ITEM(all, i, Py_NewRef(values[i]));
  bool found = has(all);
  Py_XDECREF(all);
  for (Py_ssize_t i = 0; i < count && !found; ++i) {
    found = (PyList_Check(values[i]) || PyTuple_Check(values[i])) && has(values[i]);
  }
  if (PyErr_Occurred() != nullptr) PyErr_Clear();
  return found;
}

std::uint64_t bytes_as(Kind kind, std::int64_t count) noexcept {
  return static_cast<std::uint64_t>(count) * kernels::size_of(float_of(kind));
}

PyObject* cast(PyObject* tensor, Kind from, Kind to, CastResult& seen) {
  const std::int64_t count = count_elements(tensor);
  seen.bytes += bytes_as(to, count);
  if (can_view() && is_plain_tensor(tensor)) {
    if (!is_watched(tensor, seen)) {
      PyObject* made = is_block(bytes_as(to, count)) ? cast_in_block(tensor, to) : nullptr;
      if (made == nullptr) made = cast_by_kernel(tensor, from, to, count);
      if (made != nullptr) return made;
    } else if (recorded_cast != nullptr &&
               (may_change_layout(tensor, seen) || (is_cast_to_block(count) && is_cast_in_graph(tensor)))) {
      PyObject* const function = Py_NewRef(recorded_cast);
      PyObject* const arguments[] = {tensor, dtype_of(to)};
      PyObject* made = PyObject_Vectorcall(function, arguments, 2, nullptr);
      Py_DECREF(function);
      return made;
    }
  } else if (!seen.recorded) {
    seen.recorded = grad_is_enabled() && requires_grad(tensor);
  }
  return cast_by_torch(tensor, to);
}

PyObject* cast_saturated(PyObject* tensor, Kind from, Kind to, CastResult& seen) {
  // Only a finite value out of range is changed, and only where it can be read.
  PyObject* item = PyObject_CallMethod(tensor, "item", nullptr);
  const double value = item == nullptr ? 0.0 : PyFloat_AsDouble(item);
  Py_XDECREF(item);
  if (PyErr_Occurred() != nullptr) PyErr_Clear();
  const double limit = largest(to);
  if (!std::isfinite(value) || (value <= limit && value >= -limit)) return cast(tensor, from, to, seen);
  PyObject* edge = PyObject_CallMethod(tensor, "new_tensor", "d", value > 0 ? limit : -limit);
  PyObject* made = edge == nullptr ? nullptr : cast(edge, from, to, seen);
  Py_XDECREF(edge);
  return made;
}

bool requires_grad(PyObject* tensor) noexcept {
  const auto known = symbols().requires_grad;
  const char* implementation = known != nullptr && way == Way::layout ? detail::implementation_of(tensor) : nullptr;
  if (implementation != nullptr) return known(implementation);
  return is_true(api.get_requires_grad->get(tensor, api.get_requires_grad->closure), true);
}

bool add_in_place(PyObject* tensor, PyObject* other) noexcept {
  PyObject* arguments = PyTuple_Pack(1, other);
  if (arguments == nullptr) return false;
  const auto add = reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void*>(api.add_in_place));
  PyObject* result = add(tensor, arguments, nullptr);
  Py_DECREF(arguments);
  Py_XDECREF(result);
  return result != nullptr;
}

bool has_no_dimensions(PyObject* tensor) noexcept {
  PyObject* answer = PyObject_CallMethod(tensor, "dim", nullptr);
  const bool none = answer != nullptr && PyLong_Check(answer) && PyLong_AsLong(answer) == 0;
  Py_XDECREF(answer);
  if (PyErr_Occurred() != nullptr) PyErr_Clear();
  return none;
}

double largest(Kind kind) noexcept {
  switch (kind) {
    case Kind::bf16:
      return 3.3895313892515355e38;
    case Kind::f16:
      return 65504.0;
    default:
      return 3.4028234663852886e38;
  }
}

bool is_off_cpu(PyObject* tensor) noexcept {
  DLTensor view;
  if (is_plain_tensor(tensor) && view_of(tensor, view)) return view.device.device_type != kDLCPU;
  PyObject* on_cpu = PyObject_GetAttrString(tensor, "is_cpu");
  const bool off = on_cpu == Py_False;
  Py_XDECREF(on_cpu);
  if (PyErr_Occurred() != nullptr) PyErr_Clear();
  return off;
}

}  // namespace habana_mp::tensor

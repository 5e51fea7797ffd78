#include "host/modes.hpp"

#include <algorithm>

#include "errors.hpp"
#include "host/casts_inside.hpp"
#include "host/finding.hpp"
#include "host/inside.hpp"
#include "host/ledger.hpp"
#include "host/symbols.hpp"
#include "host/thread_flag.hpp"
#include "host/view.hpp"
#include "owned.hpp"

namespace habana_mp::host {

namespace {

Assumption thread_functions{
    "torch.thread-functions",
    "functions of torch's libraries tell of this thread: are gradients recorded, is a mode, a tracer or a function "
    "mode on, how many threads are there, what is the stream of an accelerator; and whether a tensor wants a gradient",
    "torch's headers declare them; what they say, against torch's Python functions",
    "torch's Python functions are asked, so a call takes some 100 ns more; casts of weights on accelerators are not "
    "cached"};

Assumption forward_level{"torch.forward-ad-level",
                         "torch.autograd.forward_ad keeps its level in a global of the module, -1 outside of all",
                         "the global, outside and inside of a level",
                         "every cast is made as if forward-mode AD were on: by torch, none is cached"};

// Returns whether a Python object is true; `when_failed` for null. Takes the new reference.
bool is_true(PyObject* new_reference, bool when_failed) {
  const Owned answer(new_reference);
  const int truth = answer ? PyObject_IsTrue(answer.get()) : -1;
  if (truth < 0) clear_error();
  return truth < 0 ? when_failed : truth != 0;
}

// c10::Stream, a class that C++ returns in two registers.
struct Stream {
  std::int8_t device_type;
  std::int8_t device;
  std::int64_t number;
};

// Each is torch's Python function until all of torch's C++ functions are found.
struct Functions {
  bool (*any_modes_set)(bool skip_torchs_own) = [](bool skip_torchs_own) {
    return !skip_torchs_own && is_true(PyObject_CallNoArgs(api.dispatch_stack_length), true);
  };
  const void* const* (*tracing_state)() = [] {
    static const void* const states[] = {nullptr, &api};
    return &states[is_true(PyObject_CallNoArgs(api.tracing_state), true) ? 1 : 0];
  };
  bool (*is_grad_enabled)() = [] { return is_true(api.is_grad_enabled(nullptr, nullptr), true); };
  bool (*requires_grad)(const void* implementation) = nullptr;
  bool (*function_mode_enabled)() = [] { return is_true(PyObject_CallNoArgs(api.is_function_mode_on), false); };
  int (*get_num_threads)() = [] {
    const Owned answer(PyObject_CallNoArgs(api.get_num_threads));
    const long threads = answer ? PyLong_AsLong(answer.get()) : 1;
    clear_error();
    return static_cast<int>(threads);
  };
  std::uint64_t (*next_sequence_number)() = [] { return std::uint64_t{0}; };
  Stream (*current_stream)(std::int8_t device) = nullptr;
};
Functions functions;

// The bits of dispatch keys; 0 if unknown.
struct Keys {
  std::uint64_t functorch = 0;
  std::uint64_t pre_dispatch = 0;
  std::uint64_t all = 0;  // of both and of functionalization
};
Keys keys;

bool find_functions(Functions& found) {
  constexpr const char* c10 = "libc10.so";
  constexpr const char* cpu = "libtorch_cpu.so";
  return find({c10, "_ZN3c104impl20TorchDispatchModeTLS13any_modes_setEb", "c10/core/impl/TorchDispatchModeTLS.h",
               "static bool any_modes_set(bool skip_infra_modes = false);"},
              found.any_modes_set) &&
         find({c10, "_ZN3c108GradMode10is_enabledEv", "c10/core/GradMode.h", "static bool is_enabled();"},
              found.is_grad_enabled) &&
         find({c10, "_ZNK3c1010TensorImpl13requires_gradEv", "c10/core/TensorImpl.h", "bool requires_grad() const;"},
              found.requires_grad) &&
         find({cpu, "_ZN5torch3jit6tracer15getTracingStateEv", "torch/csrc/jit/frontend/tracer.h",
               "const std::shared_ptr<TracingState>& getTracingState();"},
              found.tracing_state) &&
         find({cpu, "_ZN2at4impl27torch_function_mode_enabledEv", "ATen/PythonTorchFunctionTLS.h",
               "bool torch_function_mode_enabled();"},
              found.function_mode_enabled) &&
         find({cpu, "_ZN2at15get_num_threadsEv", "ATen/Parallel.h", "int get_num_threads();"}, found.get_num_threads) &&
         find({cpu, "_ZN2at15sequence_number4peekEv", "ATen/SequenceNumber.h", "uint64_t peek();"},
              found.next_sequence_number) &&
         find({cpu, "_ZN2at11accelerator16getCurrentStreamEa", "ATen/DeviceAccelerator.h",
               "c10::Stream getCurrentStream(c10::DeviceIndex device_index);"},
              found.current_stream);
}

bool agree_with_python(const Functions& found) {
  const Functions python;
  return found.any_modes_set(false) == python.any_modes_set(false) &&
         found.is_grad_enabled() == python.is_grad_enabled() &&
         found.function_mode_enabled() == python.function_mode_enabled() &&
         (*found.tracing_state() == nullptr) == (*python.tracing_state() == nullptr) &&
         found.get_num_threads() == python.get_num_threads();
}

bool level_is_known() {
  const Owned list = made_by(
      "import torch.autograd.forward_ad as forward_ad\n"
      "def make():\n"
      "    outside = forward_ad._current_level\n"
      "    if outside != -1:\n"
      "        return [outside >= 0]\n"
      "    with forward_ad.dual_level():\n"
      "        inside = forward_ad._current_level\n"
      "    return [inside >= 0 and forward_ad._current_level == -1]\n");
  return list && PyList_GET_ITEM(list.get(), 0) == Py_True;
}

// Never released; made by bind_modes.
PyObject* level_name = nullptr;
PyObject* level_outside = nullptr;  // -1; CPython usually has only one object with this value

bool in_forward_ad() {
  if (!forward_level.holds()) return true;
  PyObject* level = PyDict_GetItemWithError(api.forward_ad_namespace, level_name);
  if (level == level_outside) return false;
  if (level == nullptr) {
    clear_error();
    return true;
  }
  const long value = PyLong_AsLong(level);
  if (value == -1 && PyErr_Occurred() != nullptr) clear_error();
  return value != -1;
}

bool is_included(std::uint64_t bits, PyObject* key) {
  return bits != 0 ? includes_any(bits) : is_true(PyObject_CallOneArg(api.is_key_included, key), true);
}

// True if torch.func is active in this thread.
bool in_transform() { return is_included(keys.functorch, api.functorch_key); }

// True if a tracer records operations as they are called, before they are dispatched. It is not a dispatch mode.
bool is_recorded_as_called() { return is_included(keys.pre_dispatch, api.pre_dispatch_key); }

// True if one of these two is active, or functionalization. Under functionalization and torch.func, newly requested
// memory may come in a wrapper.
bool a_key_intercepts() {
  if (keys.all != 0) return includes_any(keys.all);
  return in_transform() || is_included(0, api.functionalize_key) || is_recorded_as_called();
}

}  // namespace

void bind_modes() {
  if (level_name == nullptr) level_name = interned("_current_level");
  if (level_outside == nullptr) level_outside = checked(PyLong_FromLong(-1));
  Functions found;
  if (thread_functions.holds_by([&] { return find_functions(found) && agree_with_python(found); })) {
    functions = found;
    if (read_method != ReadMethod::layout) functions.requires_grad = nullptr;
  }
  const std::uint64_t functionalize = included_bit(api.functionalize_key);
  keys = {included_bit(api.functorch_key), included_bit(api.pre_dispatch_key)};
  if (keys.functorch != 0 && keys.pre_dispatch != 0 && functionalize != 0) {
    keys.all = keys.functorch | keys.pre_dispatch | functionalize;
  }
  forward_level.holds_by(level_is_known);
  clear_error();
}

bool is_intercepted() noexcept {
  return functions.any_modes_set(false) || *functions.tracing_state() != nullptr || a_key_intercepts();
}

bool is_recorded_by_torch() noexcept {
  return *functions.tracing_state() != nullptr || is_recorded_as_called() ||
         (functions.any_modes_set(false) && !functions.any_modes_set(true));
}

bool is_traced() noexcept { return in_forward_ad() || is_intercepted(); }

bool is_transformed() noexcept { return in_forward_ad() || in_transform(); }

bool grad_is_enabled() noexcept { return functions.is_grad_enabled(); }

bool gradients_are_worked_out() noexcept {
  const Owned number(PyObject_CallNoArgs(api.current_graph_task));
  const long task = number ? PyLong_AsLong(number.get()) : -1;
  clear_error();
  return task >= 0;
}

std::uint64_t next_sequence_number() noexcept { return functions.next_sequence_number(); }

std::uint64_t sequence_number_of_gradient() noexcept {
  const Owned node(PyObject_CallNoArgs(api.current_autograd_node));
  const bool is_known = node && node.get() != Py_None;
  const Owned number(is_known ? PyObject_CallMethod(node.get(), "_sequence_nr", nullptr) : nullptr);
  const std::uint64_t value = number ? PyLong_AsUnsignedLongLong(number.get()) : 0;
  if (PyErr_Occurred() != nullptr) {
    clear_error();
    return 0;
  }
  return value;
}

std::optional<std::int64_t> current_stream(int device) noexcept {
  if (functions.current_stream == nullptr) return std::nullopt;
  try {
    return functions.current_stream(static_cast<std::int8_t>(device)).number;
  } catch (...) {
    return std::nullopt;
  }
}

unsigned torch_threads() noexcept { return static_cast<unsigned>(std::max(1, functions.get_num_threads())); }

bool function_mode_is_on() noexcept { return functions.function_mode_enabled(); }

bool holds_subclass(PyObject* const* values, Py_ssize_t count) noexcept {
  const auto is_subclass = [](PyObject* value) {
    return !is_plain_tensor(value) && PyObject_TypeCheck(value, api.tensor_base) != 0;
  };
  return std::any_of(values, values + count, [&](PyObject* value) {
    if (is_plain_tensor(value)) return false;
    if (PyList_Check(value)) return PyList_GET_SIZE(value) != 0 && is_subclass(PyList_GET_ITEM(value, 0));
    if (PyTuple_Check(value)) return PyTuple_GET_SIZE(value) != 0 && is_subclass(PyTuple_GET_ITEM(value, 0));
    return is_subclass(value);
  });
}

bool has_torch_function(PyObject* const* values, Py_ssize_t count) {
  const auto has = [](PyObject* tensors) {
    const Owned answer(PyObject_CallOneArg(api.has_torch_function, tensors));
    drop_error_unless_memory_error();
    return answer.get() == Py_True;
  };
  const Owned all(checked(PyTuple_New(count)));
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyTuple_SET_ITEM(all.get(), i, Owned::borrowed(values[i]).release());
  }
  bool found = has(all.get());
  for (Py_ssize_t i = 0; i < count && !found; ++i) {
    found = (PyList_Check(values[i]) || PyTuple_Check(values[i])) && has(values[i]);
  }
  return found;
}

bool requires_grad(PyObject* tensor) noexcept {
  const char* implementation = functions.requires_grad == nullptr ? nullptr : detail::implementation_of(tensor);
  if (implementation != nullptr) return functions.requires_grad(implementation);
  return is_true(api.get_requires_grad->get(tensor, api.get_requires_grad->closure), true);
}

bool has_no_dimensions(PyObject* tensor) {
  const Owned answer(PyObject_CallMethod(tensor, "dim", nullptr));
  const bool none = answer && PyLong_Check(answer.get()) && PyLong_AsLong(answer.get()) == 0;
  drop_error_unless_memory_error();
  return none;
}

bool is_off_cpu(PyObject* tensor) noexcept {
  if (is_plain_on_cpu(tensor)) return false;
  if (is_plain_on_accelerator(tensor)) return true;
  DLTensor view;
  if (is_plain_tensor(tensor) && view_of(tensor, view)) return view.device.device_type != kDLCPU;
  const Owned on_cpu(PyObject_GetAttrString(tensor, "is_cpu"));
  clear_error();
  return on_cpu.get() == Py_False;
}

bool counts_as_negated(PyObject* tensor) noexcept {
  return can_look_inside() ? is_negative(tensor) : is_true(api.is_neg(tensor, nullptr), true);
}

}  // namespace habana_mp::host

#include "weights/escapes.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "atomic_store.hpp"
#include "errors.hpp"
#include "host/frames.hpp"
#include "host/inside.hpp"
#include "host/tensors.hpp"
#include "host/watching.hpp"
#include "weights/cache.hpp"

namespace habana_mp::weights {

using host::WatchedMethod;

namespace {

WatchedMethod untyped_storage;
WatchedMethod numpy;
WatchedMethod data_ptr;
WatchedMethod const_data_ptr;
WatchedMethod apply;
WatchedMethod map;
WatchedMethod map2;
WatchedMethod set;
WatchedMethod resize;
WatchedMethod resize_as;
WatchedMethod unsafe_chunk;
WatchedMethod unsafe_split;
WatchedMethod unsafe_split_with_sizes;
WatchedMethod lazy_clone;
WatchedMethod storage_data_ptr;
WatchedMethod view;
host::WatchedData data;
bool (*lists_apply_here)() = nullptr;

NeverDestroyed<Callers> callers_of_pointers;
NeverDestroyed<Callers> callers_of_arrays;

// True if the calling Python code is harmless. Modules that pass the result on to their own caller are skipped: that
// caller counts.
bool caller_is_harmless(const Callers& callers) {
  bool harmless = false;
  bool passes_on = true;
  host::FrameWalk walk;
  for (; walk && passes_on; walk.outwards()) {
    const Owned name = walk.module_name();
    passes_on = name && host::begins_with_one_of(name.get(), callers.passing_on.get());
    harmless = name && host::begins_with_one_of(name.get(), callers.harmless.get());
  }
  return harmless;
}

template <const WatchedMethod& method>
PyObject* escaping_stub_without_arguments(PyObject* self, PyObject* none) {
  tensor_escapes(self, false);
  return method.call(self, none);
}

// Tensor.numpy raises for bfloat16, which NumPy lacks. If the lists apply, the tensor is converted to float32 first.
PyObject* numpy_stub(PyObject* self, PyObject* arguments, PyObject* keywords) {
  tensor_escapes(self, false);
  if (host::can_look_inside() && callers_of_arrays->harmless) {
    // A weight is still held when a detached tensor of it goes to NumPy, so its memory has two owners. Most tensors
    // have one, and their callers need not be looked up.
    const host::Snapshot snapshot = host::snapshot_of(self);
    numpy_takes(snapshot.storage, snapshot.owners > 1 && caller_is_harmless(*callers_of_arrays));
  }
  const bool widens = host::is_plain_tensor(self) && host::kind_of_tensor(self) == Kind::bf16 && lists_apply_here();
  if (!widens) return numpy.call(self, arguments, keywords);
  const Owned wide(PyObject_CallMethod(self, "float", nullptr));
  return wide ? numpy.call(wide.get(), arguments, keywords) : nullptr;
}

template <const WatchedMethod& method>
PyObject* escaping_stub(PyObject* self, PyObject* arguments, PyObject* keywords) {
  tensor_escapes(self, false);
  return method.call(self, arguments, keywords);
}

// For methods that run Python code while they write: a cast that this code makes is outdated afterwards.
template <typename Call>
PyObject* while_open(PyObject* tensor, Call call) {
  const Owned held = Owned::borrowed(tensor);
  tensor_escapes(tensor, false);
  PyObject* result = call();
  tensor_escapes(tensor, false);
  return result;
}

PyObject* apply_stub(PyObject* self, PyObject* function) {
  return while_open(self, [&] { return apply.call(self, function); });
}

PyObject* map_stub(PyObject* self, PyObject* arguments, PyObject* keywords) {
  return while_open(self, [&] { return map.call(self, arguments, keywords); });
}

PyObject* map2_stub(PyObject* self, PyObject* arguments, PyObject* keywords) {
  return while_open(self, [&] { return map2.call(self, arguments, keywords); });
}

// Tensor.set_ may take the memory of another tensor without its version counter.
PyObject* set_stub(PyObject* self, PyObject* arguments, PyObject* keywords) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(arguments); ++i) tensor_escapes(PyTuple_GET_ITEM(arguments, i), false);
  Py_ssize_t position = 0;
  PyObject* value = nullptr;
  while (keywords != nullptr && PyDict_Next(keywords, &position, nullptr, &value) != 0) tensor_escapes(value, false);
  return set.call(self, arguments, keywords);
}

template <const WatchedMethod& method>
PyObject* pointer_stub(PyObject* self, PyObject* none) {
  if (!caller_is_harmless(*callers_of_pointers)) tensor_escapes(self, true);
  return method.call(self, none);
}

PyObject* storage_data_ptr_stub(PyObject* self, PyObject* none) {
  if (!caller_is_harmless(*callers_of_pointers)) {
    if (const char* storage = host::address_of_storage(self)) memory_escapes(storage, true);
  }
  return storage_data_ptr.call(self, none);
}

// In inference mode Tensor.view(dtype) makes a tensor that does not share the version counter.
PyObject* view_stub(PyObject* self, PyObject* arguments, PyObject* keywords) {
  const bool to_dtype =
      PyTuple_GET_SIZE(arguments) == 1 ? host::is_dtype(PyTuple_GET_ITEM(arguments, 0)) : keywords != nullptr;
  if (to_dtype) tensor_escapes(self, false);
  return view.call(self, arguments, keywords);
}

PyObject* data_getter_stub(PyObject* self, void* closure) {
  tensor_escapes(self, false);
  return data.read(self, closure);
}

// ---- DLPack's C exchange API --------------------------------------------------------------------------------------
// A table of functions that other libraries call without Python. Nothing counts the pointers that they get.

DLPackExchangeAPI* exchange = nullptr;  // the table while it is watched
DLPackExchangeAPI original_exchange;

int borrow_stub(void* object, DLTensor* out) {
  tensor_escapes(static_cast<PyObject*>(object), true);
  return original_exchange.dltensor_from_py_object_no_sync(object, out);
}

int share_stub(void* object, DLManagedTensorVersioned** out) {
  tensor_escapes(static_cast<PyObject*>(object), true);
  return original_exchange.managed_tensor_from_py_object_no_sync(object, out);
}

void stop_watching_exchange() {
  if (exchange == nullptr) return;
  store(&exchange->dltensor_from_py_object_no_sync, original_exchange.dltensor_from_py_object_no_sync);
  store(&exchange->managed_tensor_from_py_object_no_sync, original_exchange.managed_tensor_from_py_object_no_sync);
  exchange = nullptr;
}

struct Plan {
  WatchedMethod* method;
  PyObject* object;
  int flags;
  host::MethodStub stub;
};

constexpr int with_keywords = METH_VARARGS | METH_KEYWORDS;

}  // namespace

void watch_view_and_numpy(bool (*lists_apply)()) {
  lists_apply_here = lists_apply;
  if (view.is_watched() && numpy.is_watched()) return;
  const Plan plans[] = {
      {&view, host::method_of_tensor("view"), with_keywords, from_c<view_stub>},
      {&numpy, host::method_of_tensor("numpy"), with_keywords, from_c<numpy_stub>},
  };
  for (const Plan& plan : plans) {
    if (plan.object != nullptr && WatchedMethod::check(plan.object, plan.flags))
      plan.method->watch(plan.object, plan.stub);
  }
  drop_error_unless_memory_error();
}

void stop_watching_view_and_numpy() noexcept {
  view.stop();
  numpy.stop();
}

void watch_exchange() {
  DLPackExchangeAPI* table = host::exchange_table();
  if (exchange != nullptr || table == nullptr) return;
  original_exchange = *table;
  exchange = table;
  store(&table->dltensor_from_py_object_no_sync, from_c<borrow_stub>.pointer());
  store(&table->managed_tensor_from_py_object_no_sync, from_c<share_stub>.pointer());
}

bool watch_escapes(MemoryMethods methods) {
  const Plan plans[] = {
      {&untyped_storage, methods.untyped_storage, METH_NOARGS,
       from_c<escaping_stub_without_arguments<untyped_storage>>},
      {&data_ptr, methods.data_ptr, METH_NOARGS, from_c<pointer_stub<data_ptr>>},
      {&const_data_ptr, methods.const_data_ptr, METH_NOARGS, from_c<pointer_stub<const_data_ptr>>},
      {&apply, methods.apply, METH_O, from_c<apply_stub>},
      {&map, methods.map, with_keywords, from_c<map_stub>},
      {&map2, methods.map2, with_keywords, from_c<map2_stub>},
      {&set, methods.set, with_keywords, from_c<set_stub>},
      {&resize, methods.resize, with_keywords, from_c<escaping_stub<resize>>},
      {&resize_as, methods.resize_as, with_keywords, from_c<escaping_stub<resize_as>>},
      {&unsafe_chunk, methods.unsafe_chunk, with_keywords, from_c<escaping_stub<unsafe_chunk>>},
      {&unsafe_split, methods.unsafe_split, with_keywords, from_c<escaping_stub<unsafe_split>>},
      {&unsafe_split_with_sizes, methods.unsafe_split_with_sizes, with_keywords,
       from_c<escaping_stub<unsafe_split_with_sizes>>},
      {&lazy_clone, methods.lazy_clone, METH_NOARGS, from_c<escaping_stub_without_arguments<lazy_clone>>},
      {&storage_data_ptr, methods.storage_data_ptr, METH_NOARGS, from_c<storage_data_ptr_stub>},
  };
  for (const Plan& plan : plans) {
    const bool is_missing = plan.object == nullptr && (plan.method == &const_data_ptr || plan.method == &lazy_clone);
    if (!is_missing && !WatchedMethod::check(plan.object, plan.flags)) return false;
  }
  if (!view.is_watched() || !numpy.is_watched()) {
    PyErr_SetString(PyExc_RuntimeError,
                    "habana_mp cannot watch Tensor.view and Tensor.numpy: their calling convention is not known");
    return false;
  }
  *callers_of_pointers = std::move(methods.of_pointers);
  *callers_of_arrays = std::move(methods.of_arrays);
  for (const Plan& plan : plans) {
    if (plan.object != nullptr) plan.method->watch(plan.object, plan.stub);
  }
  watch_exchange();
  data.watch_reading(from_c<data_getter_stub>);
  return true;
}

void stop_watching_escapes() noexcept {
  for (WatchedMethod* method :
       {&untyped_storage, &data_ptr, &const_data_ptr, &apply, &map, &map2, &set, &resize, &resize_as, &unsafe_chunk,
        &unsafe_split, &unsafe_split_with_sizes, &lazy_clone, &storage_data_ptr}) {
    method->stop();
  }
  stop_watching_exchange();
  data.stop();
}

namespace {

// True if the cache has no entries, so that no cast can become wrong. The cached answer about a mapped file is dropped,
// too.
bool nothing_is_lost() noexcept {
  if (holds_any_cast()) return false;
  host::forget_files();
  return true;
}

// True if objects of this class hold no tensor: numbers, strings, and small objects of torch.
bool holds_no_tensor(PyTypeObject* type) noexcept {
  const std::string_view name(type->tp_name);
  if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) != 0) {
    static constexpr std::array harmless = {"ScriptFunction", "ScriptMethod", "_DispatchOperatorHandle", "DispatchKey",
                                            "DispatchKeySet"};
    return std::any_of(harmless.begin(), harmless.end(), [&](const char* end) { return name.ends_with(end); });
  }
  return type == Py_TYPE(Py_None) || type == &PyBool_Type || type == &PyLong_Type || type == &PyFloat_Type ||
         type == &PyComplex_Type || type == &PyUnicode_Type || type == &PyBytes_Type || name.starts_with("torch.");
}

// Reads lists, tuples and dicts directly, since iterating could run user code. Anything else that may hold a tensor,
// such as an object of a scripted class, may hold any weight.
void argument_escapes(PyObject* value, int depth) noexcept {
  constexpr int deepest = 16;
  const bool is_searched = depth < deepest;
  if (host::is_tensor_base(value)) {
    tensor_escapes(value, false);
  } else if (is_searched && (PyList_Check(value) || PyTuple_Check(value))) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i) {
      argument_escapes(PySequence_Fast_GET_ITEM(value, i), depth + 1);
    }
  } else if (is_searched && PyDict_Check(value)) {
    Py_ssize_t position = 0;
    PyObject* key = nullptr;
    PyObject* item = nullptr;
    while (PyDict_Next(value, &position, &key, &item) != 0) {
      argument_escapes(key, depth + 1);
      argument_escapes(item, depth + 1);
    }
  } else if (!holds_no_tensor(Py_TYPE(value))) {
    all_memory_escapes();
  }
}

}  // namespace

void arguments_escape(PyObject* const* values, Py_ssize_t count) noexcept {
  if (nothing_is_lost()) return;
  for (Py_ssize_t i = 0; i < count; ++i) argument_escapes(values[i], 0);
}

void tensor_escapes(PyObject* tensor, bool unseen) noexcept {
  if (!unseen && nothing_is_lost()) return;
  if (host::can_look_inside() && host::is_tensor_base(tensor)) {
    memory_escapes(host::storage_of(tensor), unseen);
  }
}

}  // namespace habana_mp::weights

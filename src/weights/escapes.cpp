#include "weights/escapes.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "errors.hpp"
#include "host/callers.hpp"
#include "host/inside.hpp"
#include "host/taps.hpp"
#include "host/tensors.hpp"
#include "weights/cache.hpp"

namespace habana_mp::weights {

using host::TappedMethod;

namespace {

// The methods of `tapped_methods`, and the two of `tap_view_and_numpy`.
TappedMethod untyped_storage, data_ptr, const_data_ptr, storage_data_ptr, apply, map, map2, set, resize, resize_as,
    unsafe_chunk, unsafe_split, unsafe_split_with_sizes, lazy_clone, view, numpy;
host::TappedPointer<getter> data;
bool (*lists_apply_here)() = nullptr;

// Returns the storage of a tensor; null if the cache holds nothing of it.
const char* storage_in_cache(PyObject* tensor) noexcept {
  const bool is_relevant = holds_any_cast() && host::can_look_inside() && host::is_tensor_base(tensor);
  return is_relevant ? host::storage_of(tensor) : nullptr;
}

template <const TappedMethod& method>
PyObject* stub_without_arguments(PyObject* self, PyObject* none) {
  tensor_escapes(self);
  return method.call(self, none);
}

template <const TappedMethod& method>
PyObject* stub(PyObject* self, PyObject* arguments, PyObject* keywords) {
  tensor_escapes(self);
  return method.call(self, arguments, keywords);
}

PyObject* storage_data_ptr_stub(PyObject* self, PyObject* none) {
  if (const char* storage = host::address_of_storage(self)) doubt(storage);
  return storage_data_ptr.call(self, none);
}

// Tensor.numpy raises for bfloat16, which NumPy lacks. If the lists apply, the tensor is converted to float32 first.
PyObject* numpy_stub(PyObject* self, PyObject* arguments, PyObject* keywords) {
  tensor_is_lent(self);
  if (!host::is_plain_tensor(self) || host::kind_of_tensor(self) != Kind::bf16) {
    return numpy.call(self, arguments, keywords);
  }
  if (!lists_apply_here()) {
    PyObject* result = numpy.call(self, arguments, keywords);
    if (result == nullptr && PyErr_ExceptionMatches(PyExc_TypeError) != 0 && host::error_is_about_a_dtype()) {
      PyErr_SetString(PyExc_TypeError, "NumPy has no bfloat16: write `.float()` before `.numpy()`");
    }
    return result;
  }
  const Owned wide(PyObject_CallMethod(self, "float", nullptr));
  return wide ? numpy.call(wide.get(), arguments, keywords) : nullptr;
}

// For methods that run Python code while they write: a cast that this code makes is outdated afterwards.
template <typename Call>
PyObject* while_open(PyObject* tensor, Call call) {
  const Owned held = Owned::borrowed(tensor);
  tensor_escapes(tensor);
  PyObject* result = call();
  tensor_escapes(tensor);
  return result;
}

PyObject* apply_stub(PyObject* self, PyObject* function) {
  return while_open(self, [&] { return apply.call(self, function); });
}

template <const TappedMethod& method>
PyObject* mapping_stub(PyObject* self, PyObject* arguments, PyObject* keywords) {
  return while_open(self, [&] { return method.call(self, arguments, keywords); });
}

// Tensor.set_ may take the memory of another tensor without its version counter.
PyObject* set_stub(PyObject* self, PyObject* arguments, PyObject* keywords) {
  tensor_escapes(self);
  arguments_escape(PySequence_Fast_ITEMS(arguments), PyTuple_GET_SIZE(arguments));
  if (keywords != nullptr) arguments_escape(&keywords, 1);
  PyObject* result = set.call(self, arguments, keywords);
  if (result != nullptr) tensor_is_aliased(self, self);
  return result;
}

// In inference mode Tensor.view(dtype) makes a tensor that does not share the version counter.
PyObject* view_stub(PyObject* self, PyObject* arguments, PyObject* keywords) {
  // Any keyword may be `dtype=`.
  const bool to_dtype =
      PyTuple_GET_SIZE(arguments) == 1 ? host::is_dtype(PyTuple_GET_ITEM(arguments, 0)) : keywords != nullptr;
  if (to_dtype) tensor_escapes(self);
  return view.call(self, arguments, keywords);
}

PyObject* data_getter_stub(PyObject* self, void* closure) {
  Owned alias(data.original()(self, closure));
  if (alias) tensor_is_aliased(self, alias.get());
  return alias.release();
}

// ---- DLPack's C exchange API --------------------------------------------------------------------------------------
// A table of functions that other libraries call without Python.

host::TappedPointer<decltype(DLPackExchangeAPI::dltensor_from_py_object_no_sync)> borrow;
host::TappedPointer<decltype(DLPackExchangeAPI::managed_tensor_from_py_object_no_sync)> share;

int borrow_stub(void* object, DLTensor* out) {
  tensor_escapes(static_cast<PyObject*>(object));
  return borrow.original()(object, out);
}

int share_stub(void* object, DLManagedTensorVersioned** out) {
  tensor_is_lent(static_cast<PyObject*>(object));
  return share.original()(object, out);
}

struct Row {
  const char* name;
  TappedMethod& method;
  int flags;
  host::MethodStub stub;
  bool may_be_missing = false;
};

constexpr int with_keywords = METH_VARARGS | METH_KEYWORDS;

const Row tapped_methods[] = {
    {"untyped_storage", untyped_storage, METH_NOARGS, from_c<stub_without_arguments<untyped_storage>>},
    {"data_ptr", data_ptr, METH_NOARGS, from_c<stub_without_arguments<data_ptr>>},
    {"const_data_ptr", const_data_ptr, METH_NOARGS, from_c<stub_without_arguments<const_data_ptr>>, true},
    {"storage.data_ptr", storage_data_ptr, METH_NOARGS, from_c<storage_data_ptr_stub>},
    {"apply_", apply, METH_O, from_c<apply_stub>},
    {"map_", map, with_keywords, from_c<mapping_stub<map>>},
    {"map2_", map2, with_keywords, from_c<mapping_stub<map2>>},
    {"set_", set, with_keywords, from_c<set_stub>},
    {"resize_", resize, with_keywords, from_c<stub<resize>>},
    {"resize_as_", resize_as, with_keywords, from_c<stub<resize_as>>},
    {"unsafe_chunk", unsafe_chunk, with_keywords, from_c<stub<unsafe_chunk>>},
    {"unsafe_split", unsafe_split, with_keywords, from_c<stub<unsafe_split>>},
    {"unsafe_split_with_sizes", unsafe_split_with_sizes, with_keywords, from_c<stub<unsafe_split_with_sizes>>},
    {"_lazy_clone", lazy_clone, METH_NOARGS, from_c<stub_without_arguments<lazy_clone>>, true},
};

}  // namespace

void tap_view_and_numpy(bool (*lists_apply)()) {
  lists_apply_here = lists_apply;
  if (view.is_tapped() && numpy.is_tapped()) return;
  const Row rows[] = {
      {"view", view, with_keywords, from_c<view_stub>},
      {"numpy", numpy, with_keywords, from_c<numpy_stub>},
  };
  for (const Row& row : rows) {
    PyObject* object = host::method_of_tensor(row.name);
    if (object != nullptr && TappedMethod::check(object, row.flags)) row.method.tap(object, row.stub);
  }
  drop_error_unless_memory_error();
}

void untap_view_and_numpy() noexcept {
  view.stop();
  numpy.stop();
}

bool tap_escapes(PyObject* methods) {
  const auto method_of = [methods](const Row& row) {
    PyObject* found = PyDict_GetItemString(methods, row.name);
    return found == Py_None ? nullptr : found;
  };
  for (const Row& row : tapped_methods) {
    PyObject* method = method_of(row);
    if ((method != nullptr || !row.may_be_missing) && !TappedMethod::check(method, row.flags)) return false;
  }
  if (!view.is_tapped() || !numpy.is_tapped()) {
    PyErr_SetString(PyExc_RuntimeError,
                    "habana_mp cannot tap Tensor.view and Tensor.numpy: their calling convention is not known");
    return false;
  }
  for (const Row& row : tapped_methods) {
    if (PyObject* method = method_of(row)) row.method.tap(method, row.stub);
  }
  if (DLPackExchangeAPI* table = host::exchange_table()) {
    borrow.tap(&table->dltensor_from_py_object_no_sync, from_c<borrow_stub>);
    share.tap(&table->managed_tensor_from_py_object_no_sync, from_c<share_stub>);
  }
  data.tap(host::reader_of_data(), from_c<data_getter_stub>);
  return true;
}

void untap_escapes() noexcept {
  for (const Row& row : tapped_methods) row.method.stop();
  borrow.stop();
  share.stop();
  data.stop();
}

namespace {

// True if objects of this class hold no tensor: numbers, strings, and small objects of torch.
bool holds_no_tensor(PyTypeObject* type) noexcept {
  const std::string_view name(type->tp_name);
  if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) != 0) {
    static constexpr std::array<std::string_view, 4> harmless = {"ScriptFunction", "_DispatchOperatorHandle",
                                                                 "DispatchKey", "DispatchKeySet"};
    return std::ranges::find(harmless, name.substr(name.rfind('.') + 1)) != harmless.end();
  }
  return type == Py_TYPE(Py_None) || type == &PyBool_Type || type == &PyLong_Type || type == &PyFloat_Type ||
         type == &PyComplex_Type || type == &PyUnicode_Type || type == &PyBytes_Type || name.starts_with("torch.");
}

// Reads lists, tuples and dicts directly, since iterating could run user code. Anything else that may hold a tensor,
// such as a scripted module's method or an object of a scripted class, may hold any weight.
void argument_escapes(PyObject* value, int depth) noexcept {
  constexpr int deepest = 16;
  const bool is_searched = depth < deepest;
  if (host::is_tensor_base(value)) {
    tensor_escapes(value);
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
    doubt_all();
  }
}

}  // namespace

void arguments_escape(PyObject* const* values, Py_ssize_t count) noexcept {
  if (!holds_any_cast()) return;
  for (Py_ssize_t i = 0; i < count; ++i) argument_escapes(values[i], 0);
}

void tensor_escapes(PyObject* tensor) noexcept { doubt(storage_in_cache(tensor)); }

void tensor_is_aliased(PyObject* tensor, PyObject* alias) {
  if (const char* storage = storage_in_cache(tensor)) doubt_while_alive(storage, alias);
}

void tensor_is_lent(PyObject* tensor) noexcept { lend(storage_in_cache(tensor)); }

}  // namespace habana_mp::weights

#include "host/torch_api.hpp"

#include <utility>

#include "errors.hpp"
#include "owned.hpp"

namespace habana_mp::host {

TorchApi api;

namespace {

// Returns a new reference. Most are kept for the life of the process.
PyObject* attribute(PyObject* owner, const char* name) { return PyObject_GetAttrString(owner, name); }

bool getter(PyTypeObject* type, const char* name, PyGetSetDef*& definition) {
  PyObject* entry = attribute(reinterpret_cast<PyObject*>(type), name);
  if (entry == nullptr) return false;
  if (Py_TYPE(entry) != &PyGetSetDescr_Type) {
    PyErr_Format(PyExc_ImportError, "habana_mp: torch.Tensor.%s is %R, not an attribute of C", name, entry);
    return false;
  }
  definition = reinterpret_cast<PyGetSetDescrObject*>(entry)->d_getset;
  return true;
}

}  // namespace

DLPackExchangeAPI* exchange_table() {
  const Owned capsule(PyObject_GetAttrString(reinterpret_cast<PyObject*>(api.tensor), "__dlpack_c_exchange_api__"));
  auto* header = capsule
                     ? static_cast<DLPackExchangeAPIHeader*>(PyCapsule_GetPointer(capsule.get(), "dlpack_exchange_api"))
                     : nullptr;
  drop_error_unless_memory_error();
  while (header != nullptr && header->version.major != DLPACK_MAJOR_VERSION) header = header->prev_api;
  auto* table = reinterpret_cast<DLPackExchangeAPI*>(header);
  return table == nullptr || table->dltensor_from_py_object_no_sync == nullptr ? nullptr : table;
}

bool find_method(PyTypeObject* type, const char* name, PyCFunction& function, int flags) {
  PyObject* entry = attribute(reinterpret_cast<PyObject*>(type), name);
  if (entry == nullptr) return false;
  if (Py_TYPE(entry) != &PyMethodDescr_Type) {
    PyErr_Format(PyExc_ImportError, "habana_mp: torch.Tensor.%s is %R, not a method of C", name, entry);
    return false;
  }
  PyMethodDef* definition = reinterpret_cast<PyMethodDescrObject*>(entry)->d_method;
  if (definition->ml_flags != flags) {
    PyErr_Format(PyExc_ImportError, "habana_mp: torch.Tensor.%s has the flags %d, expected %d", name,
                 definition->ml_flags, flags);
    return false;
  }
  function = definition->ml_meth;
  return true;
}

PyObject* method_of_tensor(const char* name) {
  // PyDict_GetItemString would return null without an exception when memory runs out.
  const Owned key(checked(PyUnicode_InternFromString(name)));
  return PyDict_GetItemWithError(api.tensor_base->tp_dict, key.get());
}

bool bind_torch() {
  if (api.tensor != nullptr) return true;
  PyObject* torch = PyImport_ImportModule("torch");
  if (torch == nullptr) return false;
  PyObject* c = attribute(torch, "_C");
  PyObject* nn = PyImport_ImportModule("torch.nn");
  PyObject* forward_ad = PyImport_ImportModule("torch.autograd.forward_ad");
  if (c == nullptr || nn == nullptr || forward_ad == nullptr) return false;

  const Owned paths(attribute(torch, "__path__"));
  const Owned first(paths ? PySequence_GetItem(paths.get(), 0) : nullptr);
  const char* const folder = first ? PyUnicode_AsUTF8(first.get()) : nullptr;
  if (folder == nullptr) return false;
  TorchApi found;
  found.folder = folder;
  const Owned keys(attribute(c, "DispatchKey"));
  if (!keys) return false;
  const auto find_type = [](PyObject* owner, const char* name, PyTypeObject*& type) {
    type = reinterpret_cast<PyTypeObject*>(attribute(owner, name));
    return type != nullptr;
  };
  if (!find_type(c, "TensorBase", found.tensor_base) || !find_type(nn, "Parameter", found.parameter) ||
      !find_type(torch, "Tensor", found.tensor) || !find_type(torch, "dtype", found.dtype)) {
    return false;
  }
  const struct {
    PyObject* owner;
    const char* name;
    PyObject** slot;
    bool may_be_missing = false;
  } objects[] = {
      {torch, "float32", &found.float32},
      {torch, "bfloat16", &found.bfloat16},
      {torch, "float16", &found.float16},
      {torch, "float64", &found.float64},
      {torch, "complex32", &found.complex32},
      {torch, "bcomplex32", &found.bcomplex32, true},
      {torch, "complex64", &found.complex64},
      {torch, "complex128", &found.complex128},
      {torch, "get_num_threads", &found.get_num_threads},
      {torch, "strided", &found.strided},
      {torch, "jagged", &found.jagged},
      {torch, "OutOfMemoryError", &found.out_of_memory_error},
      {torch, "is_inference_mode_enabled", &found.is_inference_mode},
      {c, "_InferenceMode", &found.inference_mode},
      {c, "_get_tracing_state", &found.tracing_state},
      {c, "_len_torch_dispatch_stack", &found.dispatch_stack_length},
      {c, "_from_dlpack", &found.from_dlpack},
      {c, "_has_torch_function", &found.has_torch_function},
      {c, "_is_torch_function_mode_enabled", &found.is_function_mode_on},
      {c, "_current_graph_task_id", &found.current_graph_task},
      {c, "_current_autograd_node", &found.current_autograd_node},
      {c, "_dispatch_tls_is_dispatch_key_included", &found.is_key_included},
      {keys.get(), "FuncTorchDynamicLayerFrontMode", &found.functorch_key},
      {keys.get(), "Functionalize", &found.functionalize_key},
      {keys.get(), "PreDispatch", &found.pre_dispatch_key},
  };
  for (const auto& object : objects) {
    *object.slot = attribute(object.owner, object.name);
    if (*object.slot == nullptr && !object.may_be_missing) return false;
    clear_error();
  }
  found.forward_ad_namespace = immortal(PyModule_GetDict(forward_ad));

  PyObject* grad_enabled = attribute(c, "is_grad_enabled");
  if (grad_enabled == nullptr) return false;
  if (!PyCFunction_CheckExact(grad_enabled) || PyCFunction_GET_FLAGS(grad_enabled) != METH_NOARGS) {
    PyErr_Format(PyExc_ImportError, "habana_mp: torch.is_grad_enabled is %R, not a builtin without arguments",
                 grad_enabled);
    return false;
  }
  found.is_grad_enabled = PyCFunction_GET_FUNCTION(grad_enabled);

  constexpr int with_keywords = METH_VARARGS | METH_KEYWORDS;
  if (!find_method(found.tensor_base, "float", found.to_float32, with_keywords) ||
      !find_method(found.tensor_base, "bfloat16", found.to_bfloat16, with_keywords) ||
      !find_method(found.tensor_base, "half", found.to_float16, with_keywords) ||
      !find_method(found.tensor_base, "as_strided", found.as_strided, with_keywords) ||
      !find_method(found.tensor_base, "is_neg", found.is_neg) ||
      !find_method(found.tensor_base, "is_inference", found.is_inference) ||
      !getter(found.tensor_base, "requires_grad", found.get_requires_grad) ||
      !find_method(found.tensor_base, "detach", found.detach) || !getter(found.tensor_base, "dtype", found.get_dtype) ||
      !getter(found.tensor_base, "data", found.data) || !getter(found.tensor_base, "_base", found.get_base)) {
    return false;
  }
  found.set_data = found.data->set;
  // The table of another library is tapped, but not used.
  const bool is_torchs_own = static_cast<bool>(Owned(attribute(c, "_dlpack_exchange_api")));
  drop_error_unless_memory_error();
  api = std::move(found);
  if (const DLPackExchangeAPI* table = is_torchs_own ? exchange_table() : nullptr; table != nullptr) {
    static DLPackExchangeAPI copy;
    copy = *table;
    api.exchange = &copy;
  }
  return true;
}

}  // namespace habana_mp::host

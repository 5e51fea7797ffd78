#include "host/torch_api.hpp"

#include <cstdio>
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

// Returns the number of a member of a torch enumeration; -1 if it has none.
long number_of(PyObject* member) {
  const Owned number(PyNumber_Long(member));
  const long value = number ? PyLong_AsLong(number.get()) : -1;
  clear_error();
  return value;
}

// The releases in which the results of the functions that are found by name were checked.
constexpr int first_known_minor = 8;
constexpr int last_known_minor = 13;

bool find_release(PyObject* torch, TorchApi& found) {
  const Owned version(attribute(torch, "__version__"));
  const Owned text(version ? PyObject_Str(version.get()) : nullptr);
  const Owned paths(attribute(torch, "__path__"));
  const Owned folder(paths ? PySequence_GetItem(paths.get(), 0) : nullptr);
  const char* version_utf8 = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
  const char* folder_utf8 = folder ? PyUnicode_AsUTF8(folder.get()) : nullptr;
  if (folder_utf8 != nullptr) found.folder = folder_utf8;
  int major = 0;
  int minor = 0;
  found.is_known_release = version_utf8 != nullptr && std::sscanf(version_utf8, "%d.%d", &major, &minor) == 2 &&
                           major == 2 && minor >= first_known_minor && minor <= last_known_minor;
  return version_utf8 != nullptr && folder_utf8 != nullptr;
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

  TorchApi found;
  if (!find_release(torch, found)) return false;
  const auto type = [](PyObject* owner, const char* name) {
    return reinterpret_cast<PyTypeObject*>(attribute(owner, name));
  };
  found.tensor_base = type(c, "TensorBase");
  if (found.tensor_base == nullptr) return false;
  found.parameter = type(nn, "Parameter");
  if (found.parameter == nullptr) return false;
  found.dtype = type(torch, "dtype");
  if (found.dtype == nullptr) return false;

  const struct {
    const char* name;
    PyObject** slot;
  } objects[] = {
      {"float32", &found.float32},
      {"bfloat16", &found.bfloat16},
      {"float16", &found.float16},
      {"float64", &found.float64},
      {"complex32", &found.complex32},
      {"complex64", &found.complex64},
      {"complex128", &found.complex128},
      {"get_num_threads", &found.get_num_threads},
      {"strided", &found.strided},
      {"jagged", &found.jagged},
      {"OutOfMemoryError", &found.out_of_memory_error},
  };
  for (const auto& object : objects) {
    *object.slot = attribute(torch, object.name);
    if (*object.slot == nullptr) return false;
  }
  found.bcomplex32 = attribute(torch, "bcomplex32");
  if (found.bcomplex32 == nullptr) clear_error();
  found.tracing_state = attribute(c, "_get_tracing_state");
  if (found.tracing_state == nullptr) return false;
  found.dispatch_stack_length = attribute(c, "_len_torch_dispatch_stack");
  if (found.dispatch_stack_length == nullptr) return false;
  found.from_dlpack = attribute(c, "_from_dlpack");
  if (found.from_dlpack == nullptr) return false;
  found.has_torch_function = attribute(c, "_has_torch_function");
  if (found.has_torch_function == nullptr) return false;
  found.is_function_mode_on = attribute(c, "_is_torch_function_mode_enabled");
  if (found.is_function_mode_on == nullptr) return false;
  found.current_graph_task = attribute(c, "_current_graph_task_id");
  found.current_autograd_node = attribute(c, "_current_autograd_node");
  const Owned autograd(attribute(c, "_autograd"));
  found.next_sequence_number = autograd ? attribute(autograd.get(), "_get_sequence_nr") : nullptr;
  clear_error();
  found.inference_mode = attribute(c, "_InferenceMode");
  found.is_inference_mode = attribute(torch, "is_inference_mode_enabled");
  if (found.inference_mode == nullptr || found.is_inference_mode == nullptr) return false;
  found.is_key_included = attribute(c, "_dispatch_tls_is_dispatch_key_included");
  const Owned keys(attribute(c, "DispatchKey"));
  if (found.is_key_included == nullptr || !keys) return false;
  found.functorch_key = attribute(keys.get(), "FuncTorchDynamicLayerFrontMode");
  found.functionalize_key = attribute(keys.get(), "Functionalize");
  found.pre_dispatch_key = attribute(keys.get(), "PreDispatch");
  if (found.functorch_key == nullptr || found.functionalize_key == nullptr || found.pre_dispatch_key == nullptr) {
    return false;
  }
  found.functorch_number = number_of(found.functorch_key);
  found.functionalize_number = number_of(found.functionalize_key);
  found.pre_dispatch_number = number_of(found.pre_dispatch_key);
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
  found.tensor = type(torch, "Tensor");
  if (found.tensor == nullptr) return false;
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

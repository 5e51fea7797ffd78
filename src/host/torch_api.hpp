// The parts of torch that the core needs, looked up once: types, dtypes, a few functions, the DLPack exchange API.
// Nothing here links against libtorch.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlpack/dlpack.h>

#include <string>

namespace habana_mp::host {

struct TorchApi {
  PyTypeObject* tensor_base = nullptr;  // torch._C.TensorBase
  PyTypeObject* tensor = nullptr;       // torch.Tensor
  PyTypeObject* parameter = nullptr;    // torch.nn.Parameter
  PyTypeObject* dtype = nullptr;        // torch.dtype

  PyObject* float32 = nullptr;
  PyObject* bfloat16 = nullptr;
  PyObject* float16 = nullptr;
  PyObject* float64 = nullptr;
  PyObject* complex32 = nullptr;
  PyObject* bcomplex32 = nullptr;  // null before torch 2.15
  PyObject* complex64 = nullptr;
  PyObject* complex128 = nullptr;

  // C functions of Tensor. A direct call needs no attribute look-up and no descriptor, and bypasses the core's stubs.
  PyCFunction to_float32 = nullptr;   // Tensor.float
  PyCFunction to_bfloat16 = nullptr;  // Tensor.bfloat16
  PyCFunction to_float16 = nullptr;   // Tensor.half
  PyCFunction as_strided = nullptr;   // Tensor.as_strided; takes the same
  PyCFunction is_neg = nullptr;
  PyCFunction detach = nullptr;
  PyCFunction is_inference = nullptr;
  PyCFunction is_grad_enabled = nullptr;
  PyGetSetDef* get_requires_grad = nullptr;
  PyGetSetDef* get_dtype = nullptr;
  PyGetSetDef* get_base = nullptr;  // Tensor._base
  PyGetSetDef* data = nullptr;
  setter set_data = nullptr;  // torch's own setter, also while a stub is in the definition
  PyObject* get_num_threads = nullptr;
  PyObject* out_of_memory_error = nullptr;
  PyObject* strided = nullptr;  // the layout of dense tensors; the next is that of nested ones
  PyObject* jagged = nullptr;
  PyObject* from_dlpack = nullptr;  // torch._C._from_dlpack
  // Dispatch keys (torch._C.DispatchKey) under which even the creation of a tensor is intercepted, and the functions
  // that report them.
  PyObject* functorch_key = nullptr;
  PyObject* functionalize_key = nullptr;
  PyObject* pre_dispatch_key = nullptr;       // for tracers that record operations as they are called
  PyObject* is_key_included = nullptr;        // torch._C._dispatch_tls_is_dispatch_key_included
  PyObject* tracing_state = nullptr;          // torch._C._get_tracing_state
  PyObject* dispatch_stack_length = nullptr;  // torch._C._len_torch_dispatch_stack
  PyObject* has_torch_function = nullptr;     // torch._C._has_torch_function
  PyObject* is_function_mode_on = nullptr;    // torch._C._is_torch_function_mode_enabled
  PyObject* current_graph_task = nullptr;     // torch._C._current_graph_task_id
  PyObject* current_autograd_node = nullptr;  // torch._C._current_autograd_node
  PyObject* inference_mode = nullptr;         // torch._C._InferenceMode
  PyObject* is_inference_mode = nullptr;      // torch.is_inference_mode_enabled
  PyObject* forward_ad_namespace = nullptr;   // the dictionary of torch.autograd.forward_ad

  std::string folder;  // the directory of torch

  // Null before torch 2.10. This is a copy, because calls of other code through torch's own table are tapped.
  const DLPackExchangeAPI* exchange = nullptr;
};

// Filled by bind_torch. Call every other function in this directory after bind_torch.
extern TorchApi api;

// Finds the C function of a method with these flags. False with a Python exception set if there is no such method.
bool find_method(PyTypeObject* type, const char* name, PyCFunction& function, int flags = METH_NOARGS);

// Returns the descriptor of a method of Tensor, borrowed, or null for an unknown name. Throws std::bad_alloc.
PyObject* method_of_tensor(const char* name);

// Returns the table of the DLPack exchange API through which other libraries get the memory of tensors. It is torch's
// own or, before torch 2.10, one that such a library has set. Null if there is no table of this version.
DLPackExchangeAPI* exchange_table();

// Imports torch's objects. False with a Python exception set if one is missing.
bool bind_torch();

}  // namespace habana_mp::host

// What the core needs of torch, looked up once: types, dtypes, a few of its functions, the DLPack exchange API.
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

  // Tensor's own functions, called directly: no attribute look-up, no descriptor, and never answered by the engine.
  PyCFunction to_float32 = nullptr;    // Tensor.float
  PyCFunction to_bfloat16 = nullptr;   // Tensor.bfloat16
  PyCFunction to_float16 = nullptr;    // Tensor.half
  PyCFunction add_in_place = nullptr;  // Tensor.add_, with a tuple and a dictionary
  PyCFunction as_strided = nullptr;    // the same form
  PyCFunction is_neg = nullptr;
  PyCFunction detach = nullptr;
  PyCFunction is_inference = nullptr;
  PyCFunction is_grad_enabled = nullptr;
  PyGetSetDef* get_requires_grad = nullptr;
  PyGetSetDef* get_dtype = nullptr;
  PyGetSetDef* get_base = nullptr;  // Tensor._base
  PyGetSetDef* data = nullptr;
  setter set_data = nullptr;  // as torch has it, whatever stands in the definition
  PyObject* get_num_threads = nullptr;
  PyObject* is_mkldnn_enabled = nullptr;  // torch._C._get_mkldnn_enabled
  PyObject* empty_like = nullptr;
  PyObject* strided = nullptr;  // the layouts of dense tensors, and of nested ones
  PyObject* jagged = nullptr;
  PyObject* from_dlpack = nullptr;          // torch._C._from_dlpack
  PyObject* channels_last_order = nullptr;  // torch.channels_last
  // Keys of dispatch (torch._C.DispatchKey) under which even making a tensor is not what it seems, and who tells of
  // them.
  PyObject* functorch_key = nullptr;
  PyObject* functionalize_key = nullptr;
  PyObject* pre_dispatch_key = nullptr;  // of tracers that record operations as they were called
  long functorch_number = -1;            // the same as numbers, -1 where they have none
  long functionalize_number = -1;
  long pre_dispatch_number = -1;
  PyObject* is_key_included = nullptr;        // torch._C._dispatch_tls_is_dispatch_key_included
  PyObject* is_functional = nullptr;          // torch._is_functional_tensor
  PyObject* tracing_state = nullptr;          // torch._C._get_tracing_state
  PyObject* dispatch_stack_length = nullptr;  // torch._C._len_torch_dispatch_stack
  PyObject* has_torch_function = nullptr;     // torch._C._has_torch_function
  PyObject* is_function_mode_on = nullptr;    // torch._C._is_torch_function_mode_enabled
  PyObject* current_graph_task = nullptr;     // torch._C._current_graph_task_id; null where there is none
  PyObject* current_autograd_node = nullptr;  // torch._C._current_autograd_node; null where there is none
  PyObject* next_sequence_number = nullptr;   // torch._C._autograd._get_sequence_nr; likewise
  PyObject* inference_mode = nullptr;         // torch._C._InferenceMode
  PyObject* is_inference_mode = nullptr;      // torch.is_inference_mode_enabled
  PyObject* forward_ad_namespace = nullptr;   // the dictionary of torch.autograd.forward_ad

  std::string folder;             // where torch lies
  bool is_known_release = false;  // one in whose sources it was looked up what is private here

  // Null where torch is older than 2.10. A copy: others' calls through torch's own table are watched.
  const DLPackExchangeAPI* exchange = nullptr;
};

// Filled by bind_torch; every other function of this room may only be called after it.
extern TorchApi api;

// The C function behind a method of this calling convention. False with a Python exception set where it is none.
bool find_method(PyTypeObject* type, const char* name, PyCFunction& function, int flags = METH_NOARGS);

// Returns the descriptor of a method of Tensor, borrowed, or null for an unknown name. Throws std::bad_alloc.
PyObject* method_of_tensor(const char* name);

// The table of torch's DLPack exchange API, through which other libraries get tensors' memory: torch's own or, where it
// is older than 2.10, one that such a library gave it. Null where there is none, or of another version.
DLPackExchangeAPI* exchange_table();

// Imports torch's objects. False with a Python exception set when something is missing.
bool bind_torch();

}  // namespace habana_mp::host

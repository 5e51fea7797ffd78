// The classes of tensors, and torch's own functions of tensors. The calls bypass the core's stubs.
#pragma once

#include "errors.hpp"
#include "host/torch_api.hpp"
#include "owned.hpp"
#include "rules/kind.hpp"

namespace habana_mp::host {

// True once bind_torch has found torch's objects.
inline bool is_bound() noexcept { return api.tensor_base != nullptr; }

// ---- classes --------------------------------------------------------------------------------------------------------

// True if the class is exactly torch.Tensor.
inline bool is_exact_tensor(PyObject* object) noexcept { return Py_TYPE(object) == api.tensor; }
// True if the class is exactly torch.nn.Parameter.
inline bool is_parameter(PyObject* object) noexcept { return Py_TYPE(object) == api.parameter; }
// True for torch._C.TensorBase and its subclasses.
inline bool is_tensor_base(PyObject* object) noexcept { return PyObject_TypeCheck(object, api.tensor_base) != 0; }
// True for the class torch.nn.Parameter itself.
inline bool is_parameter_class(PyObject* object) noexcept {
  return object == reinterpret_cast<PyObject*>(api.parameter);
}
// True if the current exception says that the memory of an accelerator is used up.
inline bool is_out_of_memory_error() noexcept { return PyErr_ExceptionMatches(api.out_of_memory_error) != 0; }
// Visits the tensors among these values, also those in lists and tuples among them.
template <typename Visit>
void for_each_tensor(PyObject* const* values, Py_ssize_t count, const Visit& visit, bool may_nest = true) {
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (is_tensor_base(values[i])) {
      visit(values[i]);
    } else if (may_nest && (PyTuple_Check(values[i]) || PyList_Check(values[i]))) {
      for_each_tensor(PySequence_Fast_ITEMS(values[i]), PySequence_Fast_GET_SIZE(values[i]), visit, false);
    }
  }
}
inline bool is_dtype(PyObject* object) noexcept { return Py_TYPE(object) == api.dtype; }

// Returns torch.bfloat16, torch.float16, or torch.float32 for any other kind; borrowed.
inline PyObject* dtype_of(Kind kind) noexcept {
  return kind == Kind::bf16 ? api.bfloat16 : (kind == Kind::f16 ? api.float16 : api.float32);
}

// Returns an attribute of torch._C.TensorBase, or null with an exception set.
inline Owned attribute_of_tensor_base(const char* name) {
  return Owned(PyObject_GetAttrString(reinterpret_cast<PyObject*>(api.tensor_base), name));
}

// ---- functions ------------------------------------------------------------------------------------------------------
// They return null, or false, with an exception set if torch raises.

inline Owned detach(PyObject* tensor) { return Owned(api.detach(tensor, nullptr)); }

// Calls Tensor.bfloat16, Tensor.half or Tensor.float.
inline Owned convert_by_torch(PyObject* tensor, Kind to) {
  const PyCFunction function = to == Kind::bf16 ? api.to_bfloat16 : (to == Kind::f16 ? api.to_float16 : api.to_float32);
  static PyObject* const no_arguments = checked(PyTuple_New(0));
  const auto method = reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void*>(function));
  return Owned(method(tensor, no_arguments, nullptr));
}

// Returns the places of the functions that read and assign Tensor.data.
inline getter* reader_of_data() noexcept { return &api.data->get; }
inline setter* setter_of_data() noexcept { return &api.data->set; }

inline bool set_data(PyObject* tensor, PyObject* data) { return api.set_data(tensor, data, api.data->closure) == 0; }

// Returns the tensor that this one is a view of, or None.
inline Owned base_of(PyObject* view) { return Owned(api.get_base->get(view, api.get_base->closure)); }

inline Owned from_dlpack(PyObject* capsule) { return Owned(PyObject_CallOneArg(api.from_dlpack, capsule)); }

// ---- properties -----------------------------------------------------------------------------------------------------
// False also if torch raises. They set no exception.

inline bool has_no_negative_bit(PyObject* tensor) {
  const Owned answer(api.is_neg(tensor, nullptr));
  clear_error();
  return answer.get() == Py_False;
}

inline bool is_no_inference_tensor(PyObject* tensor) {
  const Owned answer(api.is_inference(tensor, nullptr));
  clear_error();
  return answer.get() == Py_False;
}

// In its scope new tensors are ordinary tensors, even in torch's inference mode.
class OutsideOfInferenceMode {
 public:
  OutsideOfInferenceMode() {
    const Owned on(PyObject_CallNoArgs(api.is_inference_mode));
    if (!on) clear_error();
    if (on.get() != Py_True) return;
    guard_ = Owned(PyObject_CallOneArg(api.inference_mode, Py_False));
    const Owned done(guard_ ? PyObject_CallMethod(guard_.get(), "__enter__", nullptr) : nullptr);
    if (done) return;
    clear_error();
    guard_.reset();
  }
  ~OutsideOfInferenceMode() {
    if (!guard_) return;
    const HeldError held;
    const Owned done(PyObject_CallMethod(guard_.get(), "__exit__", "OOO", Py_None, Py_None, Py_None));
    if (!done) clear_error();  // the guard also ends the mode when it is destroyed
  }
  OutsideOfInferenceMode(const OutsideOfInferenceMode&) = delete;
  OutsideOfInferenceMode& operator=(const OutsideOfInferenceMode&) = delete;

 private:
  Owned guard_;
};

}  // namespace habana_mp::host

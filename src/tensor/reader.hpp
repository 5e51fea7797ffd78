// What kind of argument is this? The one question the hot path asks of every argument of every covered call.
#pragma once

#include <cstdint>

#include "tensor/torch_api.hpp"

namespace habana_mp::tensor {

enum class Kind : std::uint8_t {
  other,     // no tensor, or one that is never cast: integer, bool, quantized
  f32,
  bf16,
  f16,
  wide,      // float64 or complex: its presence leaves a call alone
  sequence,  // a list or tuple that may hold tensors
  dtype,     // a torch.dtype: an explicit dtype= given by position
};

// Sets of kinds are bit masks.
using Kinds = std::uint8_t;
constexpr Kinds bit(Kind kind) { return static_cast<Kinds>(1U << static_cast<unsigned>(kind)); }
inline constexpr Kinds floating = bit(Kind::f32) | bit(Kind::bf16) | bit(Kind::f16);
constexpr bool is_floating(Kind kind) { return (bit(kind) & floating) != 0; }

namespace detail {
// By the `dtype` attribute: subclasses, wrappers of torch.func, sparse and quantized tensors, torch before 2.10.
Kind kind_by_attribute(PyObject* tensor) noexcept;

inline Kind kind_of_dlpack(DLDataType type) noexcept {
  if (type.code == kDLFloat && type.lanes == 1) {
    if (type.bits == 32) return Kind::f32;
    if (type.bits == 16) return Kind::f16;
    if (type.bits == 64) return Kind::wide;
  }
  if (type.code == kDLBfloat && type.bits == 16 && type.lanes == 1) return Kind::bf16;
  return type.code == kDLComplex ? Kind::wide : Kind::other;
}
}  // namespace detail

// Exactly torch.Tensor or torch.nn.Parameter: the types whose memory may be read through the exchange API.
inline bool is_plain_tensor(PyObject* object) noexcept {
  return Py_TYPE(object) == api.tensor || Py_TYPE(object) == api.parameter;
}

inline Kind kind_of_tensor(PyObject* tensor) noexcept {
  if (api.exchange != nullptr && is_plain_tensor(tensor)) {
    DLTensor view;
    if (api.exchange->dltensor_from_py_object_no_sync(tensor, &view) == 0) [[likely]] {
      return detail::kind_of_dlpack(view.dtype);
    }
    PyErr_Clear();
  }
  return detail::kind_by_attribute(tensor);
}

// Never leaves a Python exception behind.
inline Kind kind_of(PyObject* object) noexcept {
  PyTypeObject* type = Py_TYPE(object);
  if (type == api.tensor || type == api.parameter) return kind_of_tensor(object);
  if (type == &PyLong_Type || type == &PyFloat_Type || type == &PyBool_Type || object == Py_None) return Kind::other;
  if (type == api.dtype) return Kind::dtype;
  if (PyTuple_Check(object) || PyList_Check(object)) return Kind::sequence;
  if (PyType_IsSubtype(type, api.tensor_base)) return kind_of_tensor(object);
  return Kind::other;
}

}  // namespace habana_mp::tensor

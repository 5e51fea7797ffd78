#include "tensor/reader.hpp"

namespace habana_mp::tensor::detail {

Kind kind_by_attribute(PyObject* tensor) noexcept {
  // A plain tensor's getter is called directly; a subclass may answer `dtype` itself.
  PyObject* dtype = is_plain_tensor(tensor) ? api.get_dtype->get(tensor, api.get_dtype->closure)
                                            : PyObject_GetAttrString(tensor, "dtype");
  if (dtype == nullptr) {
    PyErr_Clear();
    return Kind::other;
  }
  Kind kind = Kind::other;
  if (dtype == api.float32) {
    kind = Kind::f32;
  } else if (dtype == api.bfloat16) {
    kind = Kind::bf16;
  } else if (dtype == api.float16) {
    kind = Kind::f16;
  } else if (dtype == api.float64 || dtype == api.complex64 || dtype == api.complex128 || dtype == api.complex32) {
    kind = Kind::wide;
  }
  Py_DECREF(dtype);
  return kind;
}

}  // namespace habana_mp::tensor::detail

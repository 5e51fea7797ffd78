// Finds the kind of an argument. The hot path does this for each argument of each call of a patched function.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "errors.hpp"
#include "host/torch_api.hpp"
#include "rules/kind.hpp"

namespace habana_mp::host {

// The ways to read a tensor's dtype and number of elements.
enum class ReadMethod : std::uint8_t {
  layout,     // at the offsets in torch's memory that bind_reader has found; 3 ns
  attribute,  // through Python; 70 ns and more, any torch
};
extern ReadMethod read_method;

// Finds the layout. Call it after bind_torch.
void bind_reader();

namespace detail {
// Offsets in bytes: of the implementation's address in the Python object, and of the dtype's number and the number of
// elements in the implementation.
struct Layout {
  std::ptrdiff_t implementation = 0;
  std::ptrdiff_t dtype = 0;
  std::ptrdiff_t elements = 0;
};
extern Layout layout;

// Maps c10::ScalarType to kinds. Its numbers are part of torch's serialization format.
inline constexpr std::size_t scalar_types = 64;
extern const std::array<Kind, scalar_types> kind_of_scalar_type;
std::int32_t scalar_type_of(Kind kind) noexcept;

// These reads are valid if the caller passes a tensor and bind_reader has verified the layout.
inline const char* implementation_of(PyObject* tensor) noexcept {
  const char* implementation = nullptr;
  std::memcpy(&implementation, reinterpret_cast<const char*>(tensor) + layout.implementation, sizeof implementation);
  return implementation;
}
inline Kind kind_by_layout(PyObject* tensor) noexcept {
  const char* implementation = implementation_of(tensor);
  if (implementation == nullptr) return Kind::other;
  std::uint16_t scalar_type = 0;
  std::memcpy(&scalar_type, implementation + layout.dtype, sizeof scalar_type);
  return scalar_type < scalar_types ? kind_of_scalar_type[scalar_type] : Kind::other;
}

// Reads the `dtype` attribute.
Kind kind_by_attribute(PyObject* tensor) noexcept;
}  // namespace detail

// True if the type is exactly torch.Tensor or torch.nn.Parameter. Only their memory may be read.
inline bool is_plain_tensor(PyObject* object) noexcept {
  return Py_TYPE(object) == api.tensor || Py_TYPE(object) == api.parameter;
}

inline Kind kind_of_tensor(PyObject* tensor) noexcept {
  if (read_method == ReadMethod::layout) [[likely]]
    return detail::kind_by_layout(tensor);
  return detail::kind_by_attribute(tensor);
}

namespace detail {
std::int64_t count_by_method(PyObject* tensor) noexcept;
}

// Returns the number of elements of a tensor; 0 if it is unknown (a nested tensor, symbolic sizes).
inline std::int64_t count_elements(PyObject* tensor) noexcept {
  if (read_method != ReadMethod::layout) [[unlikely]]
    return detail::count_by_method(tensor);
  const char* implementation = detail::implementation_of(tensor);
  std::int64_t count = 0;
  if (implementation != nullptr) std::memcpy(&count, implementation + detail::layout.elements, sizeof count);
  return count < 0 ? 0 : count;
}

// Returns the kind of a tensor with this dtype.
Kind kind_of_dtype(PyObject* dtype) noexcept;

// Returns the kind of any object. Leaves no Python exception set.
inline Kind kind_of(PyObject* object) noexcept {
  PyTypeObject* type = Py_TYPE(object);
  if (type == api.tensor || type == api.parameter) return kind_of_tensor(object);
  if (type == &PyLong_Type || type == &PyFloat_Type || type == &PyBool_Type || object == Py_None) return Kind::other;
  if (type == api.dtype) return Kind::dtype;
  if (PyTuple_Check(object) || PyList_Check(object)) return Kind::sequence;
  if (PyType_IsSubtype(type, api.tensor_base)) return kind_of_tensor(object);
  return PyComplex_Check(object) ? Kind::wide : Kind::other;
}

}  // namespace habana_mp::host

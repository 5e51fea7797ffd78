// pybind11, and constructors that may fail.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <type_traits>
#include <utility>

namespace habana_mp {

// Decodes a name or a repr. Users write these, so they may contain lone surrogates, encoded as three bytes each.
inline pybind11::object text_of_bytes(const std::string& bytes) {
  PyObject* const text = PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "surrogatepass");
  if (text == nullptr) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::object>(text);
}

// A constructor of a pybind11 class: `class_.def("__init__", &Constructor<make>::call, is_constructor, ...)`, where
// `make` returns the object. After the constructors of `py::init` pybind11 enters the object in a table, and an
// exception there ends the process. This one does it where pybind11 catches exceptions.
template <auto make, typename Type = decltype(+make)>
struct Constructor;

template <auto make, typename Made, typename... Arguments>
struct Constructor<make, Made (*)(Arguments...)> {
  static void call(pybind11::detail::value_and_holder& place, Arguments... arguments) {
    place.value_ptr() = new Made(make(std::forward<Arguments>(arguments)...));
    place.type->init_instance(place.inst, nullptr);
  }
};

inline constexpr pybind11::detail::is_new_style_constructor is_constructor{};

}  // namespace habana_mp

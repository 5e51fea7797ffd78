// Functions that Python calls without pybind11, because they run other code.
//
// pybind11 keeps a list of the calls that are under way in a thread. It ends the process if they do not end in the
// opposite order of their beginnings, which happens in greenlets.
#pragma once

#include <cstdint>
#include <string>

#include "from_c.hpp"
#include "pybind.hpp"

namespace habana_mp {

using Values = PyObject* const*;

// CPython calls this function. It passes `count` positional arguments to `work`; a method gets its object before them.
template <auto work, Py_ssize_t count, bool is_method = false>
PyObject* plain(PyObject* self, Values values, Py_ssize_t given) {
  if (given != count) {
    PyErr_Format(PyExc_TypeError, "this function of habana_mp's core takes %zd arguments; got %zd", count, given);
    return nullptr;
  }
  if constexpr (is_method) {
    return work(self, values).release().ptr();
  } else {
    return work(values).release().ptr();
  }
}

template <auto work, Py_ssize_t count, bool is_method = false>
PyMethodDef& plain_definition(const char* name) {
  static PyMethodDef definition{name, from_c<plain<work, count, is_method>>.as_method(), METH_FASTCALL, nullptr};
  return definition;
}

template <auto work, Py_ssize_t count>
void define_c_function(pybind11::module_& module, const char* name) {
  PyMethodDef& definition = plain_definition<work, count>(name);
  auto made = pybind11::reinterpret_steal<pybind11::object>(
      PyCFunction_NewEx(&definition, nullptr, module.attr("__name__").ptr()));
  if (!made) throw pybind11::error_already_set();
  module.attr(name) = made;
}

template <auto work, Py_ssize_t count>
void define_plain_method(const pybind11::handle& type, const char* name) {
  auto made = pybind11::reinterpret_steal<pybind11::object>(
      PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(type.ptr()), &plain_definition<work, count, true>(name)));
  if (!made) throw pybind11::error_already_set();
  type.attr(name) = made;
}

// Returns an argument as one of Python's own types. Throws pybind11::type_error if it has another type.
template <typename Type>
Type argument(PyObject* value) {
  if (!Type::check_(pybind11::handle(value))) {
    throw pybind11::type_error(std::string("an argument of habana_mp's core is of the wrong type: ") +
                               Py_TYPE(value)->tp_name);
  }
  return pybind11::reinterpret_borrow<Type>(value);
}

inline std::uint64_t number_argument(PyObject* value) {
  const unsigned long long number = PyLong_AsUnsignedLongLong(value);
  if (PyErr_Occurred() != nullptr) throw pybind11::error_already_set();
  return number;
}

}  // namespace habana_mp

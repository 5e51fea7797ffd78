#include "accel/products/own_products.hpp"
#include "engine/accelerators.hpp"
#include "errors.hpp"
#include "module_parts.hpp"
#include "pybind.hpp"

namespace py = pybind11;

namespace habana_mp::accel {

using engine::Arguments;
using engine::ProductForm;

namespace {

// Returns the product of a call whose tensors are in their precision. Returns null if it must be computed otherwise; an
// exception is set only for an interrupt.
Owned multiply_call(ProductForm form, const Arguments& arguments, Kind kind) {
  PyObject* const* const values = arguments.values;
  const Py_ssize_t count = arguments.positional;
  if (arguments.keywords != nullptr) return nullptr;
  if (form == ProductForm::addmm) {
    if (count != 3 || values[0] == Py_None) return nullptr;
    return multiply({.input = values[1], .weight = values[2], .bias = values[0], .wants_matrix = true}, kind);
  }
  if (form == ProductForm::linear) {
    if (count < 2 || count > 3) return nullptr;
    return multiply(
        {.input = values[0], .weight = values[1], .bias = count == 3 ? values[2] : Py_None, .is_linear = true}, kind);
  }
  if (count != 2) return nullptr;
  return multiply({.input = values[0], .weight = values[1], .wants_matrix = form == ProductForm::mm}, kind);
}

void add_to(py::module_& module) {
  module.def(
      "multiply",
      [](const py::object& input, const py::object& weight, const py::object& bias) -> py::object {
        Owned made = multiply({.input = input.ptr(), .weight = weight.ptr(), .bias = bias.ptr(), .is_linear = true},
                              host::kind_of(input.ptr()));
        if (!made && PyErr_Occurred() != nullptr) throw py::error_already_set();
        return made ? py::reinterpret_steal<py::object>(made.release()) : py::none();
      },
      py::arg("input"), py::arg("weight"), py::arg("bias") = py::none());
}

[[maybe_unused]] const bool is_plugged_in = [] {
  engine::accelerators.multiply = &multiply_call;
  module_parts().push_back({"products", &add_to});
  return true;
}();

}  // namespace

}  // namespace habana_mp::accel

#include "accel/products/own_products.hpp"
#include "engine/products.hpp"
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
Owned multiply_call(ProductForm form, const Arguments& arguments, Kind kind, bool float32_result) {
  PyObject* const* const values = arguments.values;
  const Py_ssize_t count = arguments.positional;
  if (arguments.keywords != nullptr) return nullptr;
  ProductCall call{.input = values[0], .weight = values[1], .float32_result = float32_result};
  if (form == ProductForm::addmm) {
    if (count != 3 || values[0] == Py_None) return nullptr;
    call.input = values[1];
    call.weight = values[2];
    call.bias = values[0];
    call.wants_matrix = true;
  } else if (form == ProductForm::linear) {
    if (count < 2 || count > 3) return nullptr;
    if (count == 3) call.bias = values[2];
    call.is_linear = true;
  } else {
    if (count != 2) return nullptr;
    call.wants_matrix = form == ProductForm::mm;
  }
  return multiply(call, kind);
}

void add_to(py::module_& module) {
  module.def(
      "multiply",
      [](const py::object& input, const py::object& weight, const py::object& bias, bool float32_result) -> py::object {
        Owned made = multiply({.input = input.ptr(),
                               .weight = weight.ptr(),
                               .bias = bias.ptr(),
                               .is_linear = true,
                               .float32_result = float32_result},
                              host::kind_of(input.ptr()));
        if (!made && PyErr_Occurred() != nullptr) throw py::error_already_set();
        return made ? py::reinterpret_steal<py::object>(made.release()) : py::none();
      },
      py::arg("input"), py::arg("weight"), py::arg("bias") = py::none(), py::arg("float32_result") = false);
}

[[maybe_unused]] const bool is_plugged_in = [] {
  engine::multiply = &multiply_call;
  module_parts().push_back({"products", &add_to});
  return true;
}();

}  // namespace

}  // namespace habana_mp::accel

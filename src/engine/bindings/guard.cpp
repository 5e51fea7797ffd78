// The guard against values that are not finite.
#include "engine/guard.hpp"

#include "engine/bindings/bindings.hpp"
#include "host/modes.hpp"
#include "watch/finite.hpp"

namespace habana_mp {

namespace {

// A tensor without a gradient has none that is bad.
Py_ssize_t worst_gradient(const py::list& parameters) {
  static PyObject* const name = interned("grad");
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const py::object gradient = called(PyObject_GetAttr(parameters[i].ptr(), name));
    const watch::Finite state = watch::magnitude_of(gradient.ptr(), false).state;
    if (state == watch::Finite::infinities || state == watch::Finite::nans) return static_cast<Py_ssize_t>(i);
  }
  return -1;
}

}  // namespace

void register_guard(py::module_& module) {
  module.def("guard_calls", [](const py::object& found, double share, std::uint64_t most) {
    engine::guard_calls(found.is_none() ? nullptr : found.ptr(), share, most);
  });
  module.def("worst_value", [](const py::object& tensor, bool whole) {
    return static_cast<int>(watch::magnitude_of(tensor.ptr(), whole).state);
  });
  module.def("worst_gradient", &worst_gradient);
  module.def("computes_gradient", &host::gradients_are_worked_out);
  module.def("call_unguarded", [](const py::object& function) {
    const engine::UnguardedBlock block;
    return called(PyObject_CallNoArgs(function.ptr()));
  });
  module.def("guarded_largest", [] {
    py::dict largest;
    engine::for_each_largest([&](const std::string& operation, float value) { largest[operation.c_str()] = value; });
    return largest;
  });
  module.def("forget_guarded_largest", &engine::forget_largest);
}

}  // namespace habana_mp

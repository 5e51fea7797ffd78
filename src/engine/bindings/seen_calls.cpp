// The guard against values that are not finite, and the observer of calls.
#include "engine/seen_calls.hpp"

#include "engine/bindings/bindings.hpp"
#include "host/modes.hpp"
#include "watch/values.hpp"

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

PyObject* pointer_or_null(const py::object& object) { return object.is_none() ? nullptr : object.ptr(); }

}  // namespace

void register_seen_calls(py::module_& module) {
  module.def("guard_calls", [](const py::object& found, double share, std::uint64_t most) {
    engine::guard_calls(pointer_or_null(found), share, most);
  });
  module.def("worst_value", [](const py::object& tensor, bool whole) {
    return static_cast<int>(watch::magnitude_of(tensor.ptr(), whole).state);
  });
  module.def("worst_gradient", &worst_gradient);
  module.def("computes_gradient", &host::gradients_are_worked_out);
  module.def("guarded_largest", &engine::largest_checked);
  module.def("forget_guarded_largest", [] { engine::largest_checked().clear(); });
  module.def("observe_calls", [](const py::object& observer) {
    Owned former = engine::set_observer(pointer_or_null(observer));
    return former ? py::reinterpret_steal<py::object>(former.release()) : py::object(py::none());
  });
  module.def("make_observed_call", [] { return called(engine::make_observed_call()); });
  module.def("observed_decision", []() -> py::object {
    const auto decision = engine::decision_of_observed_call();
    if (!decision) return py::none();
    return py::make_tuple(rules::name(decision->precision), rules::row_of(decision->reason).word);
  });
  module.def("call_unseen", [](const py::object& function) {
    const engine::UnseenBlock block;
    return called(PyObject_CallNoArgs(function.ptr()));
  });
}

}  // namespace habana_mp

// The observer of calls.
#include "engine/observer.hpp"

#include "engine/bindings/bindings.hpp"

namespace habana_mp {

void register_observer(py::module_& module) {
  module.def("observe_calls", [](const py::object& observer) {
    Owned former = engine::set_observer(observer.is_none() ? nullptr : observer.ptr());
    return former ? py::reinterpret_steal<py::object>(former.release()) : py::object(py::none());
  });
  module.def("make_observed_call", [] { return called(engine::make_observed_call()); });
  module.def("call_unobserved", [](const py::object& function) {
    const engine::UnobservedBlock block;
    return function();
  });
  module.def("observed_decision", []() -> py::object {
    const auto decision = engine::decision_of_observed_call();
    if (!decision) return py::none();
    return py::make_tuple(rules::name(decision->precision), rules::row_of(decision->reason).word);
  });
}

}  // namespace habana_mp

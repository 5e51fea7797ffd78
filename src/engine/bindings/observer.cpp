// The observer of calls.
#include "engine/observer.hpp"

#include "engine/bindings/bindings.hpp"

namespace habana_mp {

void register_observer(py::module_& module) {
  module.def("observe_calls",
             [](const py::object& observer) { engine::set_observer(observer.is_none() ? nullptr : observer.ptr()); });
  module.def("make_observed_call", [] { return called(engine::make_observed_call()); });
}

}  // namespace habana_mp

// The observer of calls.
#include "engine/observer.hpp"

#include "c_functions.hpp"
#include "engine/bindings/bindings.hpp"

namespace habana_mp {

namespace {

py::object make_observed_call(Values) { return called(engine::make_observed_call()); }

}  // namespace

void register_observer(py::module_& module) {
  module.def("observe_calls",
             [](const py::object& observer) { engine::set_observer(observer.is_none() ? nullptr : observer.ptr()); });
  define_c_function<&make_observed_call, 0>(module, "make_observed_call");
}

}  // namespace habana_mp

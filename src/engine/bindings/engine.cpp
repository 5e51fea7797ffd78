// Adds the engine's functions to the module: binding to torch, the ledger of what is assumed about it, and the others.
#include <array>
#include <vector>

#include "engine/bindings/bindings.hpp"
#include "engine/rule.hpp"
#include "engine/state.hpp"
#include "engine/target.hpp"
#include "host/aten.hpp"
#include "host/callers.hpp"
#include "host/casts_inside.hpp"
#include "host/inside.hpp"
#include "host/ledger.hpp"
#include "host/modes.hpp"
#include "host/reader.hpp"
#include "host/team.hpp"
#include "host/torch_api.hpp"
#include "host/view.hpp"

namespace habana_mp {

void register_installation(py::module_& module);
void register_state(py::module_& module);
void register_taps(py::module_& module);

namespace {

std::vector<std::array<const char*, 5>> assumptions() {
  std::vector<std::array<const char*, 5>> rows;
  for (const host::Assumption* one : host::ledger()) {
    const char* state = one->state() == host::Assumption::State::holds   ? "holds"
                        : one->state() == host::Assumption::State::fails ? "does not hold"
                                                                         : "not asked";
    rows.push_back({one->name, one->assumed, one->check, one->otherwise, state});
  }
  return rows;
}

}  // namespace

void register_engine(py::module_& module) {
  module.def("bind_torch", [] {
    static bool bound = false;
    if (bound) return;
    or_throw(host::bind_torch());
    host::bind_exchange();
    host::bind_reader();
    host::bind_modes();
    or_throw(engine::bind_flags());
    host::bind_inside();
    host::bind_aten();
    host::bind_casts_inside();
    host::bind_team();
    bound = true;
  });
  module.def("set_autocast_of_accelerator",
             [](const py::object& function) { host::set_autocast_of_accelerator(function.ptr()); });
  module.def(
      "reader", [] { return host::read_method == host::ReadMethod::layout ? "layout" : "attribute"; },
      "How tensors are read: layout or attribute.");
  module.def("looks_inside", &host::can_look_inside);
  module.def("assumptions", &assumptions,
             "The ledger: name, what is assumed, how it is checked, what happens otherwise, state.");
  register_installation(module);
  register_state(module);
  register_taps(module);
}

}  // namespace habana_mp

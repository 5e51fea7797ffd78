// Adds the engine's functions to the module.
#include "pybind.hpp"

namespace py = pybind11;

namespace habana_mp {

void register_torch(py::module_& module);
void register_rules(py::module_& module);
void register_installation(py::module_& module);
void register_regions(py::module_& module);
void register_state(py::module_& module);
void register_functions(py::module_& module);
void register_taps(py::module_& module);
void register_origins(py::module_& module);
void register_seen_calls(py::module_& module);

void register_engine(py::module_& module) {
  register_torch(module);
  register_rules(module);
  register_installation(module);
  register_regions(module);
  register_state(module);
  register_functions(module);
  register_taps(module);
  register_origins(module);
  register_seen_calls(module);
}

}  // namespace habana_mp

// The binding only: what each room offers to Python is in its own bindings.cpp.
#include <pybind11/pybind11.h>

#include "forks.hpp"
#include "module_parts.hpp"

namespace py = pybind11;

namespace habana_mp {
void register_kernels(py::module_& module);
void register_log(py::module_& module);
void register_engine(py::module_& module);
void register_watch(py::module_& module);
void register_weights(py::module_& module);
void register_optim(py::module_& module);
}  // namespace habana_mp

PYBIND11_MODULE(_core, module) {
  module.doc() = "The C++ core of habana_mp: kernels, the engine that answers torch's operations, the log.";
  py::module_::import("os").attr("register_at_fork")(py::arg("after_in_child") =
                                                         py::cpp_function(&habana_mp::forks::mend));
  habana_mp::register_kernels(module);
  habana_mp::register_log(module);
  habana_mp::register_engine(module);
  habana_mp::register_watch(module);
  habana_mp::register_weights(module);
  habana_mp::register_optim(module);
  py::list accelerators;
  for (const habana_mp::ModulePart& part : habana_mp::module_parts()) {
    part.add_to(module);
    accelerators.append(part.name);
  }
  accelerators.attr("sort")();
  module.attr("accelerators") = py::tuple(accelerators);
}

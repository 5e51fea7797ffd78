// The binding only: what each room offers to Python is in its own bindings.cpp.
#include <pybind11/pybind11.h>

namespace habana_mp {
void register_kernels(pybind11::module_& module);
void register_log(pybind11::module_& module);
void register_engine(pybind11::module_& module);
void register_weights(pybind11::module_& module);
void register_optim(pybind11::module_& module);
}  // namespace habana_mp

PYBIND11_MODULE(_core, module) {
  module.doc() = "The C++ core of habana_mp: kernels, the engine that answers torch's operations, the log.";
  habana_mp::register_kernels(module);
  habana_mp::register_log(module);
  habana_mp::register_engine(module);
  habana_mp::register_weights(module);
  habana_mp::register_optim(module);
}

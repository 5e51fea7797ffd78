// Defines the module. Each folder of src/ adds its functions in its own bindings.cpp, or in a folder of that name.

#include "forks.hpp"
#include "pybind.hpp"

namespace py = pybind11;

namespace habana_mp {
void register_kernels(py::module_& module);
void register_log(py::module_& module);
void register_engine(py::module_& module);
void register_watch(py::module_& module);
void register_weights(py::module_& module);
}  // namespace habana_mp

PYBIND11_MODULE(_core_of_main_interpreter, module) {
  module.doc() = "The C++ core of habana_mp: kernels, the engine that answers torch's operations, the log.";
  py::module_::import("os").attr("register_at_fork")(py::arg("after_in_child") =
                                                         py::cpp_function(&habana_mp::forks::mend));
  habana_mp::register_kernels(module);
  habana_mp::register_log(module);
  habana_mp::register_engine(module);
  habana_mp::register_watch(module);
  habana_mp::register_weights(module);
}

// Python calls this function. pybind11's own would wait for the GIL of the main interpreter before it could refuse.
extern "C" PYBIND11_EXPORT PyObject* PyInit__core() {
  if (PyInterpreterState_Get() == PyInterpreterState_Main()) return PyInit__core_of_main_interpreter();
  PyErr_SetString(PyExc_ImportError,
                  "habana_mp cannot be imported in a subinterpreter: what it changes in torch holds for the whole "
                  "process, and torch itself cannot be imported here. Import it in the main interpreter, or in a "
                  "process of its own");
  return nullptr;
}

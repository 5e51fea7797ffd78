#include "host/finding.hpp"

namespace habana_mp::host {

Owned made_by(const char* script) {
  const Owned globals(PyDict_New());
  if (!globals) return nullptr;
  const Owned done(PyDict_SetItemString(globals.get(), "__builtins__", PyEval_GetBuiltins()) < 0
                       ? nullptr
                       : PyRun_String(script, Py_file_input, globals.get(), globals.get()));
  return Owned(done ? PyObject_CallNoArgs(PyDict_GetItemString(globals.get(), "make")) : nullptr);
}

}  // namespace habana_mp::host

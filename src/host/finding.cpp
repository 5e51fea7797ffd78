#include "host/finding.hpp"

namespace habana_mp::host {

Owned made_by(const char* script) {
  const Owned globals(PyDict_New());
  if (!globals) return nullptr;
  const Owned done(PyDict_SetItemString(globals.get(), "__builtins__", PyEval_GetBuiltins()) < 0
                       ? nullptr
                       : PyRun_String(script, Py_file_input, globals.get(), globals.get()));
  const Owned make(done ? PyMapping_GetItemString(globals.get(), "make") : nullptr);
  return Owned(make ? PyObject_CallNoArgs(make.get()) : nullptr);
}

}  // namespace habana_mp::host

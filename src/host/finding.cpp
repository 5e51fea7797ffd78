#include "host/finding.hpp"

namespace habana_mp::host {

PyObject* made_by(const char* script) {
  PyObject* globals = PyDict_New();
  if (globals == nullptr) return nullptr;
  PyObject* done = PyDict_SetItemString(globals, "__builtins__", PyEval_GetBuiltins()) < 0
                       ? nullptr
                       : PyRun_String(script, Py_file_input, globals, globals);
  PyObject* list = done == nullptr ? nullptr : PyObject_CallNoArgs(PyDict_GetItemString(globals, "make"));
  Py_XDECREF(done);
  Py_DECREF(globals);
  return list;
}

}  // namespace habana_mp::host

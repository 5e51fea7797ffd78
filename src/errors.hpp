// Python's exceptions, where a failure is no more than a reason to go another way.
#pragma once

#include <Python.h>

#include <utility>

namespace habana_mp {

// Takes the exception that is set out of the way, and drops it at the end.
class HeldError {
 public:
#if PY_VERSION_HEX >= 0x030C0000
  HeldError() : raised_(PyErr_GetRaisedException()) {}
  ~HeldError() { Py_XDECREF(raised_); }

 private:
  PyObject* raised_;
#else
  HeldError() { PyErr_Fetch(&type_, &value_, &traceback_); }
  ~HeldError() {
    Py_XDECREF(type_);
    Py_XDECREF(value_);
    Py_XDECREF(traceback_);
  }

 private:
  PyObject* type_ = nullptr;
  PyObject* value_ = nullptr;
  PyObject* traceback_ = nullptr;
#endif

 public:
  // Of the exception, borrowed; null where it passed no Python code.
  [[nodiscard]] PyObject* traceback() const {
#if PY_VERSION_HEX >= 0x030C0000
    PyObject* traceback = raised_ == nullptr ? nullptr : PyException_GetTraceback(raised_);
    Py_XDECREF(traceback);  // the exception holds it
    return traceback;
#else
    return traceback_;
#endif
  }
  // Was it raised while another one was dealt with?
  [[nodiscard]] bool has_context() const {
#if PY_VERSION_HEX >= 0x030C0000
    PyObject* const raised = raised_;
#else
    PyObject* const raised = value_;
#endif
    if (raised == nullptr || !PyExceptionInstance_Check(raised)) return false;
    PyObject* context = PyException_GetContext(raised);
    Py_XDECREF(context);
    return context != nullptr;
  }

  // The exception is set again, and no longer held.
  void restore() {
#if PY_VERSION_HEX >= 0x030C0000
    PyErr_SetRaisedException(std::exchange(raised_, nullptr));
#else
    PyErr_Restore(std::exchange(type_, nullptr), std::exchange(value_, nullptr), std::exchange(traceback_, nullptr));
#endif
  }
};

// Drops the exception that is set, if any; an interrupt, or what else is none of Exception's, stays.
inline void drop_error() {
  if (PyErr_Occurred() != nullptr && PyErr_ExceptionMatches(PyExc_Exception) != 0) PyErr_Clear();
}

}  // namespace habana_mp

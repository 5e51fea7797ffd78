// Python's exceptions, where a failure is no more than a reason to go another way.
#pragma once

#include <Python.h>

namespace habana_mp {

// Drops the exception that is set, if any; an interrupt, or what else is none of Exception's, stays.
inline void drop_error() {
  if (PyErr_Occurred() != nullptr && PyErr_ExceptionMatches(PyExc_Exception) != 0) PyErr_Clear();
}

}  // namespace habana_mp

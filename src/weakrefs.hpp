// Python's weak references, which Python 3.13 reads with another function.
#pragma once

#include "errors.hpp"
#include "owned.hpp"

namespace habana_mp {

// Returns a borrowed reference, for comparisons and short reads only; null if the object no longer exists.
inline PyObject* referent_of(PyObject* reference) noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* found = nullptr;
  if (PyWeakref_GetRef(reference, &found) < 0) clear_error();
  const Owned held(found);
  return found;
#else
  PyObject* found = PyWeakref_GetObject(reference);
  return found == Py_None ? nullptr : found;
#endif
}

}  // namespace habana_mp

// Python's weak references, which 3.13 reads by another function.
#pragma once

#include "errors.hpp"
#include "owned.hpp"

namespace habana_mp {

// Borrowed, and for comparing and short looks only; null where it is gone.
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

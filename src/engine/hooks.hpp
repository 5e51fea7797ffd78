// Dictionaries of hooks that another thread may be going through just then.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace habana_mp::engine {

// Puts a hook into a dictionary of torch's, or takes it out (null). `caller` is the code that goes through the
// dictionary and calls, beside the hooks, the function that its variable `called` names. 1: done. 0: not now, since
// another thread runs `caller` outside of that function. -1 with a Python exception set.
int set_hook(PyObject* dictionary, PyObject* key, PyObject* hook, PyObject* caller, PyObject* called) noexcept;

}  // namespace habana_mp::engine

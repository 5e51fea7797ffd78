// Changes to dictionaries of hooks that another thread may be iterating over.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace habana_mp::engine {

// Adds a hook to a torch dictionary, or removes it if `hook` is null. `caller` is the code object that iterates over
// the dictionary; besides the hooks it calls the function in its variable `called`. Returns 1 if done. Returns 0 if
// nothing was changed because another thread runs `caller` outside of that function. Returns -1 with a Python exception
// set on failure.
int set_hook(PyObject* dictionary, PyObject* key, PyObject* hook, PyObject* caller, PyObject* called) noexcept;

}  // namespace habana_mp::engine

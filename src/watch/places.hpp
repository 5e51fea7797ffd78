// Where a call comes from: the innermost line of Python code that is not torch's, nor Python's own library's.
#pragma once

#include <cstdint>
#include <string>

#include "owned.hpp"

namespace habana_mp::watch {

struct ModuleCall;

// A line of a file.
struct Place {
  Owned file;
  std::string function;
  int line = 0;
  bool is_compiler = false;  // code of torch that traces: Python is asked for what it traces
};

// Which files are passed over, and which trace: two tuples of what their names begin with. And the code of
// nn.Module._call_impl, which begins the frames of a module's call. To be called once.
void set_passed_over(PyObject* files, PyObject* compilers, PyObject* call_impl_code);

// Where the innermost Python code calls; null where all of it is passed over. Leaves a Python exception that is set as
// it is. `call` is the innermost module's call in this thread, or null.
// With `finds_compilers` code that traces ends the search; else it is passed over.
const Place* place_of_call(ModuleCall* call, bool finds_compilers) noexcept;

// The place with this file, function and line, as Python tells it.
const Place* place_named(PyObject* file, const char* function, int line);

}  // namespace habana_mp::watch

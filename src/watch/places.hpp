// Where a call comes from: the innermost line of Python code that is not torch's, nor Python's own library's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "owned.hpp"

namespace habana_mp::watch {

struct ModuleCall;

// A line of a file. Two code objects with the same line have the same place.
struct Place {
  Owned file;
  const std::string* path = nullptr;  // the same in UTF-8; lone surrogates stand in it as three bytes each
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
// The place lives until `forget_places` is called.
const Place* place_of_call(ModuleCall* call, bool finds_compilers);

// The place with this file, function and line, as Python tells it.
const Place* place_named(PyObject* file, const char* function, int line);

// Frees all places, and counts how often: a place that was found under another count is gone.
void forget_places() noexcept;
std::uint64_t place_generation() noexcept;

// The numbers of known code objects and places, for tests.
std::size_t known_codes() noexcept;
std::size_t known_places() noexcept;

}  // namespace habana_mp::watch

// The origin of a call: the innermost line of Python code that belongs neither to torch nor to Python's standard
// library.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>

#include "owned.hpp"

namespace habana_mp::watch {

struct ModuleCall;

// A line of a file. Two code objects with the same line have the same place.
struct Place {
  std::string file;  // in UTF-8, with lone surrogates as three bytes each
  std::string function;
  int line = 0;
  auto operator<=>(const Place&) const = default;
};

// Sets the files that the search skips, as a tuple of prefixes of file names. `call_impl_code` is the code of
// nn.Module._call_impl, which begins the frames of a module's call. Called once.
void set_passed_over(PyObject* files, PyObject* call_impl_code);

// Returns the place of the innermost Python code that is not skipped, or null if all code is skipped. Keeps a Python
// exception that is set. `call` is the innermost module call of this thread, or null. The place is valid until
// `forget_places` is called.
const Place* place_of_call(ModuleCall* call);

// Returns the place with this file, function and line, which come from Python.
const Place* place_named(PyObject* file, const char* function, int line);

// Frees all places and increments the generation: a place found in another generation is no longer valid.
void forget_places() noexcept;
std::uint64_t place_generation() noexcept;

// The numbers of known code objects and places, for tests.
std::size_t known_codes() noexcept;
std::size_t known_places() noexcept;

}  // namespace habana_mp::watch

// Includes pybind11 with a check for failed allocations. Every file includes pybind11 through this header.
//
// pybind11 makes a string of each keyword name of a call, and does not check whether there was memory for it. Here that
// throws std::bad_alloc, which pybind11 turns into a MemoryError.
#pragma once

#include "errors.hpp"

#define PyUnicode_InternFromString ::habana_mp::interned
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#undef PyUnicode_InternFromString

// pybind11, where memory may run out. Every file includes it by this header.
//
// pybind11 makes a string of each name that a call's keywords are compared with, and does not look whether there was
// memory for it. Here that throws std::bad_alloc, which it turns into a MemoryError.
#pragma once

#include "errors.hpp"

#define PyUnicode_InternFromString ::habana_mp::interned
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#undef PyUnicode_InternFromString

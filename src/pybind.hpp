// Includes pybind11 with a check for failed allocations. Every file includes pybind11 through this header.
//
// pybind11 makes a string of each keyword name of a call, and does not check whether there was memory for it. Of a
// number that a function returns it makes an object, and raises TypeError if there was no memory. Here both throw
// std::bad_alloc, which pybind11 turns into a MemoryError.
#pragma once

#include "errors.hpp"

#define PyUnicode_InternFromString ::habana_mp::interned
#define PyLong_FromLong(value) ::habana_mp::checked(::PyLong_FromLong(value))
#define PyLong_FromUnsignedLong(value) ::habana_mp::checked(::PyLong_FromUnsignedLong(value))
#define PyLong_FromSsize_t(value) ::habana_mp::checked(::PyLong_FromSsize_t(value))
#define PyLong_FromSize_t(value) ::habana_mp::checked(::PyLong_FromSize_t(value))
#define PyLong_FromLongLong(value) ::habana_mp::checked(::PyLong_FromLongLong(value))
#define PyLong_FromUnsignedLongLong(value) ::habana_mp::checked(::PyLong_FromUnsignedLongLong(value))
#define PyFloat_FromDouble(value) ::habana_mp::checked(::PyFloat_FromDouble(value))
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#undef PyUnicode_InternFromString
#undef PyLong_FromLong
#undef PyLong_FromUnsignedLong
#undef PyLong_FromSsize_t
#undef PyLong_FromSize_t
#undef PyLong_FromLongLong
#undef PyLong_FromUnsignedLongLong
#undef PyFloat_FromDouble

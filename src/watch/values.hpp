// Reads the values of tensors: whether they are finite, and whether a lower precision may be too coarse for them.
#pragma once

#include "rules/kind.hpp"
#include "watch/records.hpp"

namespace habana_mp::watch {

// The worst value, in this order. `unknown`: the values cannot be read here, such as those on another device.
enum class Finite : std::uint8_t { numbers, infinities, nans, unknown };

struct Magnitude {
  Finite state = Finite::numbers;
  Kind kind = Kind::other;
  float largest = 0;  // the largest magnitude of numbers that were read, if there are numbers only
};

// Reads the values of a tensor without gaps; all of them with `whole`, else samples of a large one. Other objects and
// tensors without floating-point values have no bad value.
Magnitude magnitude_of(PyObject* tensor, bool whole);

// Examines an input of a call that was made in the precision `wanted`.
void notice_input(Record& record, PyObject* tensor, Kind wanted) noexcept;

// Examines all arguments of a call, and its result, which may be null.
void notice_call(Record& record, PyObject* const* arguments, Py_ssize_t count, PyObject* result) noexcept;

// Examines a sum or difference outside of modules, where two results of a model may be nearly equal.
void notice_difference(PyObject* one, PyObject* other, PyObject* difference) noexcept;

// Notes that a backward begins from this tensor.
void notice_loss(PyObject* tensor) noexcept;

// Notes that this tensor in a lower precision is stored in place of the former one.
void notice_carried(PyObject* tensor, PyObject* former) noexcept;

}  // namespace habana_mp::watch

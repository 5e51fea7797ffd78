// Observes the input values of watched calls and the use of their results, to find values for which a lower precision
// may be too coarse.
#pragma once

#include "rules/kind.hpp"
#include "watch/records.hpp"

namespace habana_mp::watch {

// Examines an input of a call that was made in the precision `wanted`.
void notice_input(Record& record, PyObject* tensor, Kind wanted) noexcept;

// Examines all arguments of a call, and its result, which may be null.
void notice_call(Record& record, PyObject* const* arguments, Py_ssize_t count, PyObject* result) noexcept;

// Notes that a backward begins from this tensor.
void notice_loss(PyObject* tensor) noexcept;

// Notes that this tensor in a lower precision is stored in place of the former one.
void notice_carried(PyObject* tensor, PyObject* former) noexcept;

}  // namespace habana_mp::watch

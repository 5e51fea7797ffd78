// What is noticed of the values that watched calls are given, and of what becomes of their results: where a lower
// precision may be too coarse for them.
#pragma once

#include "rules/kind.hpp"
#include "watch/records.hpp"

namespace habana_mp::watch {

// Looks at an input of a call that was made in the precision `wanted`.
void notice_input(Record& record, PyObject* tensor, Kind wanted) noexcept;

// Looks at all arguments of a call.
void notice_call(Record& record, PyObject* const* arguments, Py_ssize_t count) noexcept;

// A backward begins from this tensor.
void notice_loss(PyObject* tensor) noexcept;

// A module's attribute gets this tensor in place of the former one.
void notice_carried(PyObject* tensor, PyObject* former) noexcept;

}  // namespace habana_mp::watch

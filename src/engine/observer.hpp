// The observer: a Python function that makes the calls, and so may look at their arguments, repeat them, or return
// another result.
#pragma once

#include "engine/answers.hpp"

namespace habana_mp::engine {

// Sets the answers that make calls; an observer gets between them and `answer`.
void set_answers_behind_observer(const Answers& wanted) noexcept;

// From now on `observer` is called for each call, with the object that was called, the operation's name, the arguments
// as a tuple and a dict. Its result, or its exception, is that of the call. Calls that it makes itself, and those in
// code that a tracer or a dispatch mode intercepts, are made without it. Null ends it.
void set_observer(PyObject* observer) noexcept;

// Makes the call for which the observer runs in this thread, as without an observer. Returns null with a RuntimeError
// set if no observer runs.
PyObject* make_observed_call();

}  // namespace habana_mp::engine

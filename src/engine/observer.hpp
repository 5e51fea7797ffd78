// The observer: a Python function that makes the calls, and so may look at their arguments, repeat them, or return
// another result.
#pragma once

#include <optional>

#include "engine/answers.hpp"
#include "owned.hpp"

namespace habana_mp::engine {

// Sets the answers that make calls; an observer gets between them and `answer`.
void set_answers_behind_observer(const Answers& wanted) noexcept;

// From now on `observer` is called for each call, with the object that was called, the operation's name, the arguments
// as a tuple and a dict. Its result, or its exception, is that of the call. Calls that it makes itself, and those in
// code that a tracer or a dispatch mode intercepts, are made without it. Null ends it. Returns the former observer.
Owned set_observer(PyObject* observer) noexcept;

// Makes the call for which the observer runs in this thread, as without an observer. Returns null with a RuntimeError
// set if no observer runs.
PyObject* make_observed_call();

// While it lives, and an observer is set, calls in this thread are made as they are written: none is observed, decided
// or counted.
class UnobservedBlock {
 public:
  UnobservedBlock() noexcept;
  ~UnobservedBlock();
  UnobservedBlock(const UnobservedBlock&) = delete;
  UnobservedBlock& operator=(const UnobservedBlock&) = delete;

 private:
  bool former_;
};

// Stores the decision about a call, if the observer of this thread runs for it.
void note_decision(const Target& target, Decision decision) noexcept;
// The decision about the call for which the observer runs: the last one, after it was made.
std::optional<Decision> decision_of_observed_call() noexcept;

}  // namespace habana_mp::engine

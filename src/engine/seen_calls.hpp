// Those that see each call: the watch of the report, the guard, and an observer in Python. While there is one, the
// answers that let them see take the place of the plain ones.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>

#include "engine/call.hpp"
#include "owned.hpp"

namespace habana_mp::engine {

// Sets whether the watch sees calls begin and end and measures the time of their casts.
void watch_calls(bool watched) noexcept;

// Checks this share of the calls from now on, above 0 and at most 1. `found` is called with the object that was called,
// the operation's name, the arguments as a tuple and a dict, the result, and the worst values of the result and of the
// arguments before the call (-1 if they were not checked) as numbers of watch::Finite. It is called for results that
// are not finite or cannot be read here, and if all calls are checked for all others too. Its exceptions are those of
// the call. Null stops the guard.
void guard_calls(PyObject* found, double share) noexcept;

// The largest magnitudes of checked results in float16, by operation.
std::unordered_map<std::string, float>& largest_checked() noexcept;

// From now on `observer` makes each call: it gets the object that was called, the operation's name, the arguments as a
// tuple and a dict. Its result, or its exception, is that of the call. It gets no call in code that a tracer or a
// dispatch mode intercepts, nor those that it makes itself. Null ends it. Returns the former observer.
Owned set_observer(PyObject* observer) noexcept;
// Makes the call for which the observer runs in this thread, as without an observer. Returns null with a RuntimeError
// set if no observer runs.
PyObject* make_observed_call();
// The decision about that call, after it was made.
std::optional<Decision> decision_of_observed_call() noexcept;
// Stores the decision about a call, if the observer of this thread runs for it.
void note_decision(const Target& target, Decision decision) noexcept;

// Begins or ends a call of a module whose ModuleCall::uses gets the Parameters among the arguments of the calls in it.
// Each use is a tuple: the operation's name, the Parameter, the objects of the running module and of those around it,
// and the number of the rules in a module that decide, or 0.
void notice_weights(bool begins) noexcept;

// While it lives, calls in this thread are made as they are written: none is seen, decided or counted. They are those
// of the guard and of an observer themselves. Without these it changes nothing.
class UnseenBlock {
 public:
  UnseenBlock() noexcept;
  ~UnseenBlock();
  UnseenBlock(const UnseenBlock&) = delete;
  UnseenBlock& operator=(const UnseenBlock&) = delete;

 private:
  bool former_;
};

}  // namespace habana_mp::engine

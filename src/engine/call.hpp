// The steps of one call: read the arguments, decide, make the casts, call the original, count, log.
#pragma once

#include "engine/arguments.hpp"
#include "engine/state.hpp"
#include "engine/target.hpp"

namespace habana_mp::engine {

// Answers a call of a target. Returns a new reference, or null with the Python exception that the original would raise.
PyObject* answer(Target& target, const Arguments& arguments);

// Sets whether the watch sees calls begin and end and measures the time of their casts.
void watch_calls(bool watched) noexcept;

// True if the casts of this operator of torch.ops are decided already: its code was compiled, or the operator is called
// from inside a call of itself.
inline bool is_decided(const Target& target) {
  const ThreadState& state = thread_state;
  return state.compiled_runs != 0 ||
         (state.running_operator != nullptr && state.running_operator->operation == target.operation);
}

// Makes `tensor[key] = value` by the in-place rule. Returns the result of `original`, or -1 with an exception set.
int answer_assignment(Target& target, PyObject* tensor, PyObject* key, PyObject* value, objobjargproc original);

// Returns `tensor[key]`. Computes it in float32 if the tensor is lowered and its gradient adds up values. Null with an
// exception set on failure.
PyObject* answer_subscript(Target& target, PyObject* tensor, PyObject* key, binaryfunc original);

}  // namespace habana_mp::engine

// The way of one call: read the arguments, decide, cast what must be cast, call the original, count, log.
#pragma once

#include "engine/arguments.hpp"
#include "engine/state.hpp"
#include "engine/target.hpp"

namespace habana_mp::engine {

// Answers a call of a target. A new reference, or null with the Python exception that the original would raise.
PyObject* answer(Target& target, const Arguments& arguments);

// Is the watch to see calls begin and end, and the time of casts?
void watch_calls(bool watched) noexcept;

// Was it decided already what this operator of torch.ops casts: when the code was compiled, or when it was called from
// outside of itself?
inline bool is_decided(const Target& target) {
  const ThreadState& state = thread_state;
  return state.compiled_runs != 0 ||
         (state.running_operator != nullptr && state.running_operator->operation == target.operation);
}

// `tensor[key] = value`, by the in-place rule. The original's result.
int answer_assignment(Target& target, PyObject* tensor, PyObject* key, PyObject* value, objobjargproc original);

// `tensor[key]`: of what was lowered in float32, where its gradient adds up.
PyObject* answer_subscript(Target& target, PyObject* tensor, PyObject* key, binaryfunc original);

}  // namespace habana_mp::engine

// The steps of one call: choose the rule, read the arguments, decide, make the casts, call the original, count, log.
#pragma once

#include "engine/arguments.hpp"
#include "engine/state.hpp"
#include "engine/target.hpp"

namespace habana_mp::engine {

// Answers a call of a target. Returns a new reference, or null with the Python exception that the original would raise.
PyObject* answer(Target& target, const Arguments& arguments);

// Answers `tensor[key] = value`; the value is null for `del tensor[key]`. Returns 0, or -1 with an exception set.
int answer_assignment(Target& target, PyObject* tensor, PyObject* key, PyObject* value);

// Answers `tensor[key]`.
PyObject* answer_subscript(Target& target, PyObject* tensor, PyObject* key);

// True if the casts of this operator of torch.ops are decided already: its code was compiled, or the operator is called
// from inside a call of itself.
inline bool is_decided(const Target& target) {
  const ThreadState& state = thread_state;
  return state.compiled_runs != 0 ||
         (state.running_operator != nullptr && state.running_operator->operation == target.operation);
}

}  // namespace habana_mp::engine

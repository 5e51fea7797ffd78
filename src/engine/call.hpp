// The steps of one call: choose the rule, read the arguments, decide, make the casts, call the original, count, log.
#pragma once

#include "engine/reading.hpp"
#include "engine/state.hpp"
#include "engine/target.hpp"

namespace habana_mp::engine {

// Answers a call of a target. Returns a new reference, or null with the Python exception that the original would raise.
PyObject* answer(Target& target, const Arguments& arguments);

// Answers `tensor[key] = value`; the value is null for `del tensor[key]`. Returns 0, or -1 with an exception set.
int answer_assignment(Target& target, PyObject* tensor, PyObject* key, PyObject* value);

// Answers `tensor[key]`.
PyObject* answer_subscript(Target& target, PyObject* tensor, PyObject* key);

// ---- the functions that answer a call by its rule ----

// The decision about a call in a region of torch.autocast(enabled=False). It is counted but not logged, as under
// disable_casts: the model itself disables autocast there.
inline Decision protected_call(const Arguments& arguments) {
  return {given_precision(arguments), Reason::autocast_off};
}

// Returns the rule that the lists have for a target: those of the innermost region, or convert's. A user-defined
// function has its own rule.
const Rule& rule_of_lists(const Target& target);

// Each returns the result of the call, or null with an exception set.
PyObject* answer_by_rule(Target& target, const Rule& first, const Arguments& arguments);
PyObject* answer_protected(Target& target, const Arguments& arguments);

// The functions are exchanged while calls are watched, so that a call does not check for the watch.
struct Answers {
  PyObject* (*by_rule)(Target&, const Rule&, const Arguments&);
  PyObject* (*in_protected_region)(Target&, const Arguments&);
  PyObject* (*under_disable_casts)(Target&, const Arguments&);
  PyObject* (*unlisted)(Target&, const Arguments&);
};
extern Answers answers;

// True if the casts of this operator of torch.ops are decided already: its code was compiled, or the operator is called
// from inside a call of itself.
inline bool is_decided(const Target& target) {
  const ThreadState& state = thread_state;
  return state.compiled_runs != 0 ||
         (state.running_operator != nullptr && state.running_operator->operation == target.operation);
}

}  // namespace habana_mp::engine

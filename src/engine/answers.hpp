// The functions that answer a call by its rule, and the table from which `answer` takes them.
#pragma once

#include "engine/arguments.hpp"
#include "engine/target.hpp"

namespace habana_mp::engine {

// The decision about a call in a region of torch.autocast(enabled=False). It is counted but not logged, as under
// disable_casts: the model itself disables autocast there.
inline constexpr Decision protected_call{Precision::unchanged, Reason::autocast_off};

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

}  // namespace habana_mp::engine

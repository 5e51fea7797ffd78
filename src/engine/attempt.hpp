// One attempt at a call with its casts: with evenly spaced rows, with the casts of torch's
// autocast, or with casts that the engine makes.
#pragma once

#include "engine/facts.hpp"
#include "owned.hpp"
#include "rules/retry.hpp"

namespace habana_mp::engine {

// The plan and the outcome of an attempt.
struct Attempt {
  const rules::Plan& plan;
  CastContext context{};
  bool made = true;  // false if a cast failed
  bool scalar_changed = false;
};

// Returns the result, or null with the exception of a cast or of the call set. `attempt` says which of them failed.
Owned attempt_with_casts(const Call& call, Attempt& attempt);

// ---- failed calls that are made again, step by step (rules/retry.hpp) ----

// Tries this step and then the next ones, after the failure of a first try whose exception is set, if there was one.
// Returns null with an exception set if all steps fail.
Owned try_again(rules::Try step, const rules::Failure& first, const Facts& facts);

// The same after a call failed as it is written, whose inputs needed no cast.
Owned try_plain_again(bool holds_lower, const Facts& facts);

// Makes a call that has no correct lowered form: in float32 if the rule allows it, else as it is written.
Owned call_without_lowering(const Facts& facts);

}  // namespace habana_mp::engine

// Makes a failed call again, step by step (rules/retry.hpp).
#pragma once

#include "engine/facts.hpp"
#include "owned.hpp"
#include "rules/retry.hpp"

namespace habana_mp::engine {

// Tries this step and then the next ones, after the failure of a first try whose exception is set, if there was one.
// Returns null with an exception set if all steps fail.
Owned try_again(rules::Try step, const rules::Failure& first, const Facts& facts);

// The same after a call failed as it is written, whose inputs needed no cast.
Owned try_plain_again(bool holds_lower, const Facts& facts);

// Makes a call that has no correct lowered form: in float32 if the rule allows it, else as it is written.
Owned call_without_lowering(const Facts& facts);

}  // namespace habana_mp::engine

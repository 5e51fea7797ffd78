// One attempt at a call with its casts: with evenly spaced rows, with the casts of torch's
// autocast, or with casts that the engine makes.
#pragma once

#include "engine/cast_arguments.hpp"

namespace habana_mp::engine {

// The options and the outcome of an attempt.
struct Attempt {
  CastContext context;
  bool is_fused = false;    // from the plan
  bool is_inside = false;   // from the plan
  bool in_float32 = false;  // from the plan
  bool made = true;         // false if a cast failed
  bool scalar_changed = false;
  bool interrupted = false;
};

// True if torch's autocast can lower the products inside this call and leave all else as it is without lists. That
// requires that all tensors are on the CPU, in float32 or in `to`, and that torch records no operations.
bool may_lower_products(const Call& call, Kind to);

// Returns the result, or null with the exception of a cast or of the call set. `attempt` says which of them failed.
Owned attempt_with_casts(const Call& call, Kind to, Attempt& attempt);

}  // namespace habana_mp::engine

// One try of a call with its casts: from a packed weight, with rows that lie evenly, with torch's own casts, or with
// ours.
#pragma once

#include "engine/cast_arguments.hpp"

namespace habana_mp::engine {

// What came of a try.
struct Attempt {
  Tally tally;
  bool is_fused = false;   // as the plan says
  bool is_inside = false;  // likewise
  bool made = true;        // the casts were
  bool scalar_changed = false;
  bool interrupted = false;
};

// Can torch's autocast lower the products inside of this call, and leave the rest as it would be without lists? Only
// on the CPU, where all is in float32 or in this precision already, and where torch records no operations.
bool may_lower_products(const Call& call, Kind to);

// The result, or null with the exception of a cast or of the call; `attempt` tells which.
Owned attempt_with_casts(const Call& call, Kind to, Attempt& attempt);

}  // namespace habana_mp::engine

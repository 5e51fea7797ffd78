// The functions that accelerators (src/accel) add to a call. Each accelerator sets its own when the module is loaded.
#pragma once

#include "engine/cast_arguments.hpp"
#include "rules/decide.hpp"

namespace habana_mp::engine {

struct Accelerators {
  // Returns the result of a product or convolution that autograd does not track, by our own kernels or from a packed
  // weight (accel/products). Null if the call must be made the ordinary way; an exception is then set only by an
  // interrupt.
  Owned (*answer_from_weight)(const Call& call, Kind to, CastContext& context) = nullptr;
};
extern Accelerators accelerators;

}  // namespace habana_mp::engine

// Where accelerators (src/accel) plug into the way of a call. Each fills in what it does as the module is loaded.
#pragma once

#include "engine/cast_arguments.hpp"
#include "rules/decide.hpp"

namespace habana_mp::engine {

struct Accelerators {
  // Answers a call that records nothing from a weight in another layout (accel/packed). Null, without an exception but
  // an interrupt's, where the call is to be made the ordinary way.
  Owned (*answer_from_packed)(const Call& call, Kind to, Tally& tally) = nullptr;
  // Is the call faster as it is written (accel/slower)?
  rules::Answer (*is_slower_lowered)(const Call& call, Kind to) = nullptr;
};
extern Accelerators accelerators;

}  // namespace habana_mp::engine

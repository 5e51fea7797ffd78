// What is done with the result of a call: rounding, and notes about its origin (known_tensors.hpp).
#pragma once

#include "engine/facts.hpp"
#include "engine/known_tensors.hpp"

namespace habana_mp::engine {

// Returns the float32 result, or the tuple of results, rounded to `to`. Null with an exception set on failure.
Owned rounded(PyObject* result, Kind to, CastContext& context);

// The calls that wrote values in lower precision into a weight in float32.
extern std::uint64_t lower_updates;

// Remembers the result if this call lowered its inputs, or if it sums inputs in float32 that an earlier call lowered.
// If autograd tracks the result, this calls the region's function with it instead. Returns false with an exception set
// if that function raised or memory ran out.
bool remember_if_lowered(const Facts& facts, const rules::Plan& plan, const CastContext& context, PyObject* result);

}  // namespace habana_mp::engine

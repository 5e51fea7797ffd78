// HABANA_MP_TRACE: prints the steps of the decisions about calls of one operation, or of all, to stderr.
#pragma once

#include "engine/target.hpp"
#include "rules/trace.hpp"

namespace habana_mp::engine {

// Sets the target whose steps follow in this thread.
void set_traced_target(const Target& target) noexcept;
inline void trace_steps_of(const Target& target) noexcept {
  if (rules::tracer != nullptr) [[unlikely]]
    set_traced_target(target);
}

// Traces a cast of the argument at this place.
void trace_cast(Py_ssize_t place, Kind from, Kind to, rules::Where where = rules::Where::here()) noexcept;

}  // namespace habana_mp::engine

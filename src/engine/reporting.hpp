// Counts finished calls, and passes them on to the watch, the log and the trace.
#pragma once

#include "engine/cast_arguments.hpp"
#include "listeners.hpp"
#include "rules/trace.hpp"

namespace habana_mp::engine {

inline void count(Target& target, Decision decision, const CastContext& context) noexcept {
  Count& counter =
      target.counts[static_cast<std::size_t>(decision.precision)][static_cast<std::size_t>(decision.reason)];
  ++counter.calls;
  counter.casts += context.casts - context.cached;
  counter.bytes += context.made.bytes;
  counter.needed += context.needed;
}

// Reports a finished call to the watch and the log.
void notify_listeners(Target& target, Decision decision, const CastContext& context);

// Reports a finished call to the watch alone.
void notify_watch(Target& target, Decision decision);

// ---- HABANA_MP_TRACE: prints the steps of the decisions about calls of one operation, or of all, to stderr ----

// Sets the target whose steps follow in this thread.
void set_traced_target(const Target& target) noexcept;
inline void trace_steps_of(const Target& target) noexcept {
  if (rules::tracer != nullptr) [[unlikely]]
    set_traced_target(target);
}

// Traces a cast of the argument at this place.
void trace_cast(Py_ssize_t place, Kind from, Kind to, rules::Where where = rules::Where::here()) noexcept;

void trace_result(const Target& target, Decision decision) noexcept;

inline void report(Target& target, Decision decision, const CastContext& context) {
  count(target, decision, context);
  if (rules::tracer != nullptr) [[unlikely]]
    trace_result(target, decision);
  if (anybody_listens()) [[unlikely]]
    notify_listeners(target, decision, context);
}

}  // namespace habana_mp::engine

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
  counter.small += context.small;
}

// Reports a finished call to the watch and the log.
void notify_listeners(Target& target, Decision decision, const CastContext& context);

// Reports a finished call to the watch alone.
void notify_watch(Target& target, Decision decision);

void trace_result(const Target& target, Decision decision) noexcept;

inline void report(Target& target, Decision decision, const CastContext& context) {
  count(target, decision, context);
  if (rules::tracer != nullptr) [[unlikely]]
    trace_result(target, decision);
  if (anybody_listens()) [[unlikely]]
    notify_listeners(target, decision, context);
}

}  // namespace habana_mp::engine

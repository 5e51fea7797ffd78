// Counts finished calls, and passes them on to the watch, the log and the trace.
#pragma once

#include "engine/cast_arguments.hpp"
#include "listeners.hpp"
#include "rules/trace.hpp"

namespace habana_mp::engine {

inline void count(Target& target, Decision decision, const CastContext& context) {
  Count& counter = count_of(target, decision);
  ++counter.calls;
  counter.casts += context.casts - context.cached;
  counter.bytes += context.made.bytes;
  counter.needed += context.needed;
}

// Sets the graph for which this thread collects its calls instead of counting them: 0 for none, `no_graph` for calls
// that never count, such as those of a compiler's passes. Returns the former one.
inline constexpr std::uint64_t no_graph = 1;
std::uint64_t exchange_traced_graph(std::uint64_t graph) noexcept;
// Counts the calls that were collected for a graph. Dynamo drops what it traced of code that it cannot compile as one
// graph, and begins again.
void count_traced(std::uint64_t graph);

// Counts a finished call, and reports it to the watch and the log. `traced`: the place of a call that was traced, or
// null.
void count_and_notify(Target& target, Decision decision, const CastContext& context, bool is_logged = true,
                      PyObject* traced = nullptr);

// Counts a call that the log leaves out.
inline void count_unlogged(Target& target, Decision decision) {
  if (anybody_listens()) [[unlikely]]
    return count_and_notify(target, decision, {}, false);
  count(target, decision, {});
}

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
  if (rules::tracer != nullptr) [[unlikely]]
    trace_result(target, decision);
  if (anybody_listens()) [[unlikely]]
    return count_and_notify(target, decision, context);
  count(target, decision, context);
}

}  // namespace habana_mp::engine

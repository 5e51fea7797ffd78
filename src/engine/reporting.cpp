#include "engine/reporting.hpp"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "engine/region.hpp"
#include "engine/seen_calls.hpp"
#include "engine/state.hpp"
#include "errors.hpp"
#include "host/modes.hpp"
#include "log/log.hpp"
#include "watch/calls.hpp"

namespace habana_mp::engine {

namespace {

void log_call(const Target& target, Decision decision, unsigned casts) {
  if (!log::explains()) {
    log::operation(target.representation, target.operation, decision, casts, nullptr);
    return;
  }
  log::Origin origin;
  if (!listens(Listener::watch)) watch::bound_places();
  if (const watch::Place* place = watch::place_of_call(watch::innermost_module_call())) {
    origin = {place->file, place->line};
  }
  log::operation(target.representation, target.operation, decision, casts, &origin);
}

struct TracedCall {
  Target* target;
  Decision decision;
  CastContext context;
  Owned place;  // as watch::traced_place returns it
};
thread_local std::map<std::uint64_t, std::vector<TracedCall>> traced_calls;  // by graph
thread_local std::uint64_t traced_graph = 0;
int collecting_threads = 0;  // the GIL protects it

// True for a call that does not count now, since this thread collects calls. Collects those of the script: others are
// parts of operations that were decided as a whole.
bool is_set_aside(Target& target, Decision decision, const CastContext& context) {
  if (traced_graph == 0) return false;
  const bool is_dropped = traced_graph == no_graph || is_below_dispatcher() || host::function_mode_is_on() ||
                          caller_is_inside_of_an_operation();
  if (!is_dropped && target.index == no_index) return false;  // the target of a user's function may be freed before
  if (!is_dropped) traced_calls[traced_graph].push_back({&target, decision, context, watch::traced_place()});
  return true;
}

}  // namespace

std::uint64_t exchange_traced_graph(std::uint64_t graph) noexcept {
  if (graph == 0) traced_calls.clear();
  collecting_threads += int{graph != 0} - int{traced_graph != 0};
  set_listening(Listener::compiler, collecting_threads != 0);
  return std::exchange(traced_graph, graph);
}

void count_traced(std::uint64_t graph) {
  const auto calls = traced_calls.extract(graph);
  if (calls.empty()) return;
  const std::uint64_t around = std::exchange(traced_graph, 0);
  for (const TracedCall& one : calls.mapped()) {
    count_and_notify(*one.target, one.decision, one.context, true, one.place.get());
  }
  traced_graph = around;
}

void count_and_notify(Target& target, Decision decision, const CastContext& context, bool is_logged, PyObject* traced) {
  const HeldError held;
  if (listens(Listener::observer)) note_decision(target, decision);
  if (listens(Listener::compiler) && is_set_aside(target, decision, context)) return;
  count(target, decision, context);
  const unsigned casts = context.casts - context.cached;
  if (listens(Listener::watch)) {
    watch::decided(&target, target.operation, target.index != no_index, decision,
                   {casts, context.cached, context.made.bytes, context.needed}, context.has_autocast_casts, traced,
                   decision.reason == Reason::inside ? function_without_casts() : nullptr);
  }
  if (is_logged && log::is_active()) log_call(target, decision, casts);
}

namespace {

const char* traced_operation = nullptr;        // "all", or the name of an operation
thread_local std::array<char, 128> current{};  // a copy, since targets of Python functions may be freed

// Returns the part of the path that begins at `src`.
const char* short_path(const char* path) noexcept {
  const char* found = std::strstr(path, "src/");
  for (const char* next = found; next != nullptr; next = std::strstr(next + 1, "src/")) found = next;
  return found == nullptr ? path : found;
}

void print(const char* step, const char* detail, rules::Where where) noexcept {
  const char* const operation = current.data();
  if (std::strcmp(traced_operation, "all") != 0 && std::strcmp(traced_operation, operation) != 0) return;
  std::fprintf(stderr, "habana_mp: %s: %s%s%s (%s:%u)\n", operation, step, *detail == '\0' ? "" : ": ", detail,
               short_path(where.file), where.line);
}

[[maybe_unused]] const bool is_set = [] {
  traced_operation = std::getenv("HABANA_MP_TRACE");
  if (traced_operation != nullptr && *traced_operation != '\0') rules::tracer = &print;
  return rules::tracer != nullptr;
}();

constexpr std::array kind_names{"other", "fp32", "bf16", "fp16", "float64 or complex", "sequence", "dtype"};

}  // namespace

void set_traced_target(const Target& target) noexcept {
  std::snprintf(current.data(), current.size(), "%s", target.operation.c_str());
}

void trace_cast(Py_ssize_t place, Kind from, Kind to, rules::Where where) noexcept {
  std::array<char, 80> text{};
  const auto name = [](Kind kind) { return kind_names[static_cast<std::size_t>(kind)]; };
  std::snprintf(text.data(), text.size(), "argument %zd, %s to %s", place, name(from), name(to));
  rules::trace("cast", text.data(), where);
}

void trace_result(const Target& target, Decision decision) noexcept {
  set_traced_target(target);  // the call may have made others
  rules::trace(rules::name(decision.precision), rules::describe(decision.reason));
}

}  // namespace habana_mp::engine

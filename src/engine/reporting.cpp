#include "engine/reporting.hpp"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "engine/seen_calls.hpp"
#include "errors.hpp"
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
  if (const watch::Place* place = watch::place_of_call(watch::innermost_module_call(), false)) {
    origin = {place->file, place->line};
  }
  log::operation(target.representation, target.operation, decision, casts, &origin);
}

}  // namespace

void notify_listeners(Target& target, Decision decision, const CastContext& context) {
  const HeldError held;
  const unsigned casts = context.casts - context.cached;
  if (listens(Listener::watch)) {
    watch::decided(&target, target.operation, target.index != no_index, decision,
                   {casts, context.cached, context.made.bytes, context.needed}, context.has_autocast_casts);
  }
  if (listens(Listener::observer)) note_decision(target, decision);
  if (log::is_active()) log_call(target, decision, casts);
}

void notify_watch(Target& target, Decision decision) {
  watch::decided(&target, target.operation, target.index != no_index, decision, {}, false);
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

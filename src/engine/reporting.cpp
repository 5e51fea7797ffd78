#include "engine/reporting.hpp"

#include "engine/seen_calls.hpp"
#include "engine/tracing.hpp"
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
                   {casts, context.cached, context.made.bytes, context.small}, context.has_autocast_casts);
  }
  if (listens(Listener::observer)) note_decision(target, decision);
  if (log::is_active()) log_call(target, decision, casts);
}

void notify_watch(Target& target, Decision decision) {
  watch::decided(&target, target.operation, target.index != no_index, decision, {}, false);
}

void trace_result(const Target& target, Decision decision) noexcept {
  set_traced_target(target);  // the call may have made others
  rules::trace(rules::name(decision.precision), rules::describe(decision.reason));
}

}  // namespace habana_mp::engine

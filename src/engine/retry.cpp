#include "engine/retry.hpp"

#include "engine/originals.hpp"
#include "engine/reporting.hpp"
#include "engine/tracing.hpp"
#include "errors.hpp"
#include "host/callers.hpp"

namespace habana_mp::engine {

using rules::Try;

namespace {

// Makes the call with every input in one precision.
Owned make_in(Kind to, Decision decision, const Call& call, rules::Failure& failure) {
  CastContext context;
  CastArguments cast(call.arguments);
  failure.casts_were_made = cast.make(call.rule, call.reading, to, context);
  failure.changed_anything = context.casts != 0;
  Owned result(failure.casts_were_made ? call_original(call.target, cast.arguments()) : nullptr);
  if (result) report(call.target, decision, context);
  return result;
}

Owned make_as_written(const Call& call) {
  Owned result(call_original(call.target, call.arguments));
  if (result) report(call.target, {Precision::unchanged, Reason::no_kernel}, {});
  return result;
}

Owned make_try(Try step, const Call& call, rules::Failure& failure) {
  switch (step) {
    case Try::in_float32:
      return make_in(Kind::f32, {Precision::fp32, Reason::no_kernel}, call, failure);
    case Try::in_precision_of_state: {
      const Kind to = lower_state_of(call);
      return make_in(to, {rules::precision_of(to), Reason::in_place}, call, failure);
    }
    default:
      return make_as_written(call);
  }
}

// True if the exception says that a dtype was refused, by torch or by a cast.
bool is_refusal(const rules::Failure& failure) { return !failure.casts_were_made || host::error_is_about_a_dtype(); }

}  // namespace

Owned try_again(Try step, const rules::Failure& first, const Facts& facts) {
  if (step == Try::give_up) return nullptr;
  bool was_refusal = is_refusal(first);
  do {
    HeldError former;
    rules::Failure failure{.step = step, .was_as_written = first.was_as_written};
    trace_steps_of(facts.target);
    rules::trace("it failed, and is tried again", rules::name(step));
    Owned result = make_try(step, facts, failure);
    if (!result) {
      step = rules::next_try(facts.rule, failure, facts);
      const bool is_of_call = failure.casts_were_made ? facts.torch_raised() : facts.cast_refused();
      const bool refused = is_of_call && is_refusal(failure);
      if (former && is_of_call && !rules::tells_more(failure, refused, was_refusal)) continue;
      was_refusal = refused;
    }
    former.drop();
    if (result) return result;
  } while (step != Try::give_up);
  return nullptr;
}

Owned call_without_lowering(const Facts& facts) {
  const bool may_widen = facts.rule.action != Action::in_place;
  return try_again(may_widen ? Try::in_float32 : Try::as_written, {}, facts);
}

Owned try_plain_again(bool holds_lower, const Facts& facts) {
  const Try step = rules::next_try_of_plain(facts.rule, holds_lower, facts);
  return try_again(step, {.was_as_written = true}, facts);
}

}  // namespace habana_mp::engine

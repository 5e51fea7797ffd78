// The answers while calls are watched: the watch sees each call begin and end, and measures the time of its casts.
#include "engine/answers.hpp"
#include "engine/call.hpp"
#include "engine/facts.hpp"
#include "engine/guard.hpp"
#include "engine/originals.hpp"
#include "engine/reporting.hpp"
#include "tensor/cast.hpp"
#include "watch/calls.hpp"
#include "weights/cache.hpp"

namespace habana_mp::engine {

namespace {

// Returns the result of `make`, which makes the call.
template <typename Make>
PyObject* watched(Target& target, const Arguments& arguments, const Make& make) {
  watch::Call call(&target, arguments.values, arguments.count());
  PyObject* result = make(call);
  call.ends(arguments.values, arguments.count(), result);
  return result;
}

PyObject* watched_as_written(Target& target, const Arguments& arguments, Decision decision) {
  return watched(target, arguments, [&](const watch::Call&) {
    PyObject* result = call_original(target, arguments);
    count(target, decision, {});
    notify_watch(target, decision);
    return result;
  });
}

PyObject* answer_by_rule_watched(Target& target, const Rule& rule, const Arguments& arguments) {
  return watched(target, arguments, [&](watch::Call& call) {
    const auto refused = weights::refusals_so_far();
    PyObject* result = answer_by_rule(target, rule, arguments);
    for (std::size_t why = 0; why < refused.size(); ++why) {
      if (weights::refusals_so_far()[why] != refused[why]) call.weight_was_refused(static_cast<std::uint8_t>(why));
    }
    return result;
  });
}

PyObject* answer_protected_watched(Target& target, const Arguments& arguments) {
  return watched(target, arguments, [&](const watch::Call& call) {
    PyObject* result = answer_protected(target, arguments);
    if (!call.is_recorded()) notify_watch(target, protected_call);
    return result;
  });
}

// Records a call of an operation without a rule if its first floating tensor is in a lower precision: its result then
// is too.
PyObject* answer_unlisted_watched(Target& target, const Arguments& arguments) {
  const Kind kind = first_floating_kind(arguments);
  if (!is_lower(kind) || is_left_alone(arguments)) return call_original(target, arguments);
  const bool is_listed = thread_state.lists_suspended && rule_of_lists(target).action != Action::none;
  const Reason reason = is_listed ? Reason::suspended : Reason::unlisted;
  return watched_as_written(target, arguments, {rules::precision_of(kind), reason});
}

// Counts a call under disable_casts. Without the watch such calls are not counted, and so cost nothing.
PyObject* answer_disabled_watched(Target& target, const Arguments& arguments) {
  const bool has_rule = rule_of_lists(target).action != Action::none || target.unlisted->action != Action::none;
  if (!has_rule || (!policy_is_installed && thread_state.region == nullptr)) return call_original(target, arguments);
  return watched_as_written(target, arguments, {Precision::unchanged, Reason::disabled});
}

Owned cast_timed(PyObject* tensor, Kind from, Kind to, tensor::CastResult& seen) {
  const watch::CastTime time;
  return tensor::untimed_makers.cast(tensor, from, to, seen);
}

void convert_timed(const void* source, Kind from, void* target, Kind to, std::int64_t count) {
  const watch::CastTime time;
  tensor::untimed_makers.convert(source, from, target, to, count);
}

constexpr Answers answers_unwatched{&answer_by_rule, &answer_protected, &call_original, &call_original};
constexpr Answers answers_watched{&answer_by_rule_watched, &answer_protected_watched, &answer_disabled_watched,
                                  &answer_unlisted_watched};

}  // namespace

Answers answers = answers_unwatched;

void watch_calls(bool watched) noexcept {
  set_answers(watched ? answers_watched : answers_unwatched);
  tensor::makers = watched ? tensor::Makers{&cast_timed, &convert_timed} : tensor::untimed_makers;
}

}  // namespace habana_mp::engine

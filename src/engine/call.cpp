#include "engine/call.hpp"

#include <algorithm>
#include <new>
#include <optional>

#include "engine/attempt.hpp"
#include "engine/facts.hpp"
#include "engine/known_tensors.hpp"
#include "engine/originals.hpp"
#include "engine/region.hpp"
#include "engine/tracing.hpp"
#include "errors.hpp"
#include "host/frames.hpp"
#include "log/log.hpp"
#include "rules/decide.hpp"
#include "rules/retry.hpp"
#include "rules/rule_source.hpp"
#include "watch/calls.hpp"
#include "weights/cache.hpp"
#include "weights/escapes.hpp"

namespace habana_mp::engine {

using rules::Plan;
using rules::Try;
using rules::Way;

namespace {

void count(Target& target, Decision decision, const Tally& tally) {
  Count& counter =
      target.counts[static_cast<std::size_t>(decision.precision)][static_cast<std::size_t>(decision.reason)];
  ++counter.calls;
  counter.casts += tally.casts - tally.kept;
  counter.bytes += tally.made.bytes;
  counter.small += tally.small;
}

void log_call(const Target& target, Decision decision, unsigned casts) {
  if (!log::explains()) {
    log::operation(target.representation, target.operation, decision, casts, nullptr);
    return;
  }
  log::Origin origin;
  if (!listens(Listener::watch)) watch::bound_places();
  if (const watch::Place* place = watch::place_of_call(watch::innermost_module_call(), false)) {
    origin = {*place->path, place->line};
  }
  log::operation(target.representation, target.operation, decision, casts, &origin);
}

// Reports a finished call to the watch and the log. When memory runs out they miss the call, and its result is still
// returned.
[[gnu::noinline]] void tell(Target& target, Decision decision, const Tally& tally) noexcept {
  HeldError held;
  try {
    const unsigned casts = tally.casts - tally.kept;
    if (listens(Listener::watch)) {
      watch::decided(&target, target.operation, target.index != no_index, decision,
                     {casts, tally.kept, tally.made.bytes, tally.small}, tally.has_autocast_casts);
    }
    if (log::is_active()) log_call(target, decision, casts);
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): see above
  }
  held.restore();
}

void trace_result(const Target& target, Decision decision) noexcept {
  set_traced_target(target);  // the call may have made others
  rules::trace(rules::name(decision.precision), rules::describe(decision.reason));
}

void report(Target& target, Decision decision, const Tally& tally) {
  count(target, decision, tally);
  if (rules::tracer != nullptr) [[unlikely]]
    trace_result(target, decision);
  if (anybody_listens()) [[unlikely]]
    tell(target, decision, tally);
}

// ---- after a call that failed ---------------------------------------------------------------------------------------

// Makes the call with every input in one precision.
PyObject* make_in(Kind to, Decision decision, const Call& call, rules::Failure& failure) {
  Tally tally;
  CastArguments cast(call.arguments);
  failure.casts_were_made = cast.make(call.rule, call.reading, to, tally);
  failure.changed_anything = tally.casts != 0;
  PyObject* result = failure.casts_were_made ? call_original(call.target, cast.arguments()) : nullptr;
  if (result != nullptr) report(call.target, decision, tally);
  return result;
}

PyObject* make_as_written(const Call& call) {
  PyObject* result = call_original(call.target, call.arguments);
  if (result != nullptr) report(call.target, {Precision::unchanged, Reason::no_kernel}, {});
  return result;
}

PyObject* make_try(Try step, const Call& call, rules::Failure& failure) {
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

// Tries this step and then the next steps of the ladder (rules/retry.hpp). `was_as_written` is true if the call has
// already failed as it is written. Returns null with an exception set if all steps fail.
PyObject* try_again(Try step, bool was_as_written, const Facts& facts) {
  for (;;) {
    HeldError former;
    rules::Failure failure{.step = step, .was_as_written = was_as_written};
    trace_steps_of(facts.target);
    rules::trace("it failed, and is tried again", rules::name(step));
    if (PyObject* result = make_try(step, facts, failure)) return result;
    step = rules::next_try(facts.rule, failure, facts);
    if (step == Try::give_up) return nullptr;
    if (step == Try::give_up_former) {
      clear_error();
      former.restore();
      return nullptr;
    }
  }
}

// Makes a call that has no correct lowered form: in float32 if the rule allows it, else as it is written.
PyObject* answer_without_lowering(const Facts& facts) {
  const bool may_widen = facts.rule.action != Action::in_place;
  return try_again(may_widen ? Try::in_float32 : Try::as_written, false, facts);
}

PyObject* try_plain_again(bool holds_lower, const Facts& facts) {
  const Try step = rules::next_try_of_plain(facts.rule, holds_lower, facts);
  return step == Try::give_up ? nullptr : try_again(step, true, facts);
}

// ---- by the plan ----------------------------------------------------------------------------------------------------

PyObject* refuse(const Target& target) {
  PyErr_Format(PyExc_RuntimeError,
               "%s is refused in a float16 region: its gradient may not fit into float16, and a cast of its input to "
               "float32 would not help, since the gradient goes back through that cast. Leave out the sigmoid before "
               "it and use torch.nn.functional.binary_cross_entropy_with_logits (torch.nn.BCEWithLogitsLoss for "
               "torch.nn.BCELoss), which is safe, or compute it in float32 under hmp.disable_casts()",
               target.operation.c_str());
  return nullptr;
}

// Returns the float32 result, or the tuple of results, rounded to `to`. Null with an exception set on failure.
Owned rounded(PyObject* result, Kind to, Tally& tally) {
  if (PyTuple_CheckExact(result)) {
    Owned all(PyTuple_New(PyTuple_GET_SIZE(result)));
    for (Py_ssize_t i = 0; all && i < PyTuple_GET_SIZE(result); ++i) {
      Owned made = rounded(PyTuple_GET_ITEM(result, i), to, tally);
      if (!made) return nullptr;
      PyTuple_SET_ITEM(all.get(), i, made.release());
    }
    return all;
  }
  return host::kind_of(result) == Kind::f32 ? tensor::cast(result, Kind::f32, to, tally.made) : Owned::borrowed(result);
}

// Remembers a result of lowered inputs. If autograd tracks it, this calls the region's function with it instead.
// Returns false with an exception set if that function raised or memory ran out.
bool note_as_lowered(PyObject* result, bool is_recorded) {
  const RuleSet* region = thread_state.region;
  if (!is_recorded) return remember_lowered(result);
  if (region != nullptr && region->after_tracked_cast != nullptr) {
    return static_cast<bool>(Owned(PyObject_CallOneArg(region->after_tracked_cast, result)));
  }
  return true;
}

// True if the call returned one of its arguments, as in-place operations do.
bool is_argument(PyObject* result, const Arguments& arguments) {
  PyObject* const* const end = arguments.values + arguments.count();
  return std::find(arguments.values, end, result) != end;
}

// True if this call lowered its inputs, or if it sums inputs in float32 that an earlier call lowered. An argument that
// the call returns does not count: it is the user's tensor or is remembered already.
bool makes_lowered_result(const Facts& facts, const Plan& plan, PyObject* result) {
  if (!is_lower(plan.to) || is_argument(result, facts.arguments)) return false;
  if (rules::must_cast(plan.to, facts.reading)) return true;
  return plan.computed_in != plan.to && holds_lowered_tensor(facts.arguments);
}

// Counts a call that raised, with the decision made for it, and returns `result`. Checkpointing, for example, ends a
// recomputation with an exception.
PyObject* counted_if_failed(PyObject* result, const Facts& facts, Decision decision, const Tally& tally) {
  if (result == nullptr) report(facts.target, decision, tally);
  return result;
}

// Inlined: each extra frame costs several nanoseconds on return.
[[gnu::always_inline]] inline PyObject* answer_with_casts(const Facts& facts, Plan plan) {
  Attempt attempt;
  attempt.is_fused = plan.is_fused;
  attempt.is_inside = plan.is_inside;
  Owned result = attempt_with_casts(facts, plan.computed_in, attempt);
  if (result && plan.computed_in != plan.to) result = rounded(result.get(), plan.to, attempt.tally);
  if (!result) {
    if (attempt.interrupted) return counted_if_failed(nullptr, facts, plan.decision, attempt.tally);
    const bool changed_anything = attempt.tally.casts != 0 || attempt.scalar_changed;
    const rules::Failure failure{.step = Try::with_casts,
                                 .was_as_written = attempt.made && !changed_anything,
                                 .casts_were_made = attempt.made,
                                 .changed_anything = changed_anything};
    const Try next = rules::next_try(facts.rule, failure, facts);
    PyObject* const again = next == Try::give_up ? nullptr : try_again(next, failure.was_as_written, facts);
    return counted_if_failed(again, facts, plan.decision, attempt.tally);
  }
  if (attempt.scalar_changed) plan.decision.reason = Reason::scalar;
  report(facts.target, plan.decision, attempt.tally);
  const bool lowered = attempt.tally.casts != 0 && makes_lowered_result(facts, plan, result.get());
  if (lowered && !note_as_lowered(result.get(), attempt.tally.made.recorded)) return nullptr;
  return result.release();
}

// Remembers the result of arithmetic on module tensors alone as a module tensor. Also remembers the result of
// arithmetic on a lower value that a module holds: an average may be computed in several steps. Returns `made`, or null
// with an exception set if `made` is null or memory runs out.
PyObject* noted_as_state(const Call& call, PyObject* made) {
  if (made == nullptr || !(module_tensors_are_followed || lower_module_values_exist) || !call.rule.is_elementwise)
    return made;
  if (lower_module_values_exist && is_lower(host::kind_of(made)) && holds_lower_module_value(call.arguments)) {
    Owned result(made);
    return remember_computed_from_module_value(made) ? result.release() : nullptr;
  }
  if (!is_floating(host::kind_of(made)) || !computes_state(call.arguments)) return made;
  Owned result(made);
  // An alias of a module tensor is known already. Its entry would replace that tensor's, and it may die earlier.
  return is_module_tensor(made) || remember_module_tensor(made) ? result.release() : nullptr;
}

// Makes a call whose plan is neither `with_casts` nor `as_written`.
PyObject* answer_otherwise(const Facts& facts, const Plan& plan) {
  switch (plan.way) {
    case Way::leave:
    case Way::unlisted_rule:  // the target has no such rule
      report(facts.target, plan.decision, {});
      return noted_as_state(facts, call_original(facts.target, facts.arguments));
    case Way::leave_to_outer:
      return call_undecided(facts.target, facts.arguments);
    case Way::without_lowering:
      return counted_if_failed(answer_without_lowering(facts), facts, plan.decision, {});
    case Way::refuse:
      return refuse(facts.target);
    default:  // Way::failed
      return nullptr;
  }
}

// True if this reason explains a call better than the rule for unlisted operations does.
constexpr bool is_shown(Reason reason) {
  return reason == Reason::state || reason == Reason::all_float32 || reason == Reason::points;
}

// Returns the decision to report for a call that is made as it is written. While calls are watched, an optimizer step
// has its own reason.
template <bool is_watched>
Decision decision_to_report(Decision decision) {
  if (!is_watched || thread_state.optimizer_steps == 0) return decision;
  const bool is_step = reason_against_casts(thread_state) == Reason::optimizer_step;
  return is_step ? Decision{Precision::unchanged, Reason::optimizer_step} : decision;
}

// Not inlined, so that calls which `answer` ends early need no stack space for a reading.
template <bool is_watched>
[[gnu::noinline]] PyObject* answer_by_rule(Target& target, const Rule& speaking, const Arguments& arguments) {
  const Rule* rule = &speaking;
  std::optional<Decision> shown;  // the decision to report, if it is not the plan's
  for (;;) {
    Reading reading(arguments.count());
    read(*rule, arguments, reading);
    const Facts facts{{target, *rule, arguments, reading}};
    const Plan plan = rules::decide(*rule, reading, facts);
    if (plan.leaves_numbers) [[unlikely]]
      leave_out_numbers(facts, reading);
    if (plan.way == Way::with_casts) return answer_with_casts(facts, plan);
    if (plan.way == Way::unlisted_rule && target.unlisted->action != Action::none) {
      rule = target.unlisted;
      if (is_shown(plan.decision.reason)) shown = plan.decision;
      continue;
    }
    if (plan.way != Way::as_written) return answer_otherwise(facts, plan);
    const bool is_seen = !target.equivalent || host::function_mode_is_on();
    PyObject* result = is_seen ? call_original(target, arguments) : call_unseen(target, arguments);
    if (result == nullptr) [[unlikely]] {
      PyObject* const again = try_plain_again(is_lower(plan.to), facts);
      return counted_if_failed(again, facts, shown.value_or(plan.decision), {});
    }
    // In another release of torch the operation may not increment the version counter of the tensor that it writes to.
    if (plan.decision.reason == Reason::explicit_out) weights::tensor_escapes(result, false);
    report(target, decision_to_report<is_watched>(shown.value_or(plan.decision)), {});
    return noted_as_state(facts, result);
  }
}

// Counted but not logged, as under disable_casts: the model itself disables autocast here.
constexpr Decision protected_call{Precision::unchanged, Reason::autocast_off};

PyObject* counted_as_protected(Target& target, PyObject* result) {
  if (result != nullptr) count(target, protected_call, {});
  return result;
}

// Answers a call in a region of torch.autocast(enabled=False).
[[gnu::noinline]] PyObject* answer_protected(Target& target, const Arguments& arguments) {
  const Rule& rule = *target.unlisted;
  if (rule.action == Action::none) return counted_as_protected(target, call_original(target, arguments));
  Reading reading(arguments.count());
  const Facts facts{{target, rule, arguments, reading}};
  if (!rules::may_repeat(rule, facts)) return counted_as_protected(target, call_original(target, arguments));
  if (rule.is_product) {
    read(rule, arguments, reading);
    const Plan plan = rules::decide_protected(rule, reading, facts);
    if (plan.way == Way::with_casts) return answer_with_casts(facts, plan);
    if (plan.way != Way::as_written) return answer_otherwise(facts, plan);
  }
  PyObject* result = call_original(target, arguments);
  if (result != nullptr) return counted_as_protected(target, result);
  HeldError held;
  Reading again(arguments.count());
  read(rule, arguments, again);
  const Facts facts_again{{target, rule, arguments, again}};
  const bool holds_lower = rules::draft_protected(rule, again, facts_again).to == Kind::f32;
  held.restore();
  result = try_plain_again(holds_lower, facts_again);
  if (result == nullptr) count(target, protected_call, {});
  return result;
}

// ---- choice of the rule ---------------------------------------------------------------------------------------------

// Returns the rule that the lists have for a target: those of the innermost region, or convert's. A user-defined
// function has its own rule.
const Rule& rule_of_lists(const Target& target) {
  const RuleSet* region = thread_state.region;
  if (region == nullptr || target.index == no_index) [[likely]]
    return *target.listed;
  return *region->rules[target.index];
}

// Reports a finished call to the watch alone.
void tell_watch(Target& target, Decision decision) noexcept {
  try {
    watch::decided(&target, target.operation, target.index != no_index, decision, {}, false);
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): the watch loses the call
  }
}

// Like answer_by_rule. The watch also sees the call begin and end.
PyObject* answer_by_rule_watched(Target& target, const Rule& speaking, const Arguments& arguments) {
  watch::Call call(&target);
  const auto refused = weights::refusals_so_far();
  PyObject* result = answer_by_rule<true>(target, speaking, arguments);
  for (std::size_t why = 0; why < refused.size(); ++why) {
    if (weights::refusals_so_far()[why] != refused[why]) call.weight_was_refused(static_cast<std::uint8_t>(why));
  }
  call.ends(arguments.values, arguments.count(), result);
  return result;
}

PyObject* answer_protected_watched(Target& target, const Arguments& arguments) {
  watch::Call call(&target);
  PyObject* result = answer_protected(target, arguments);
  if (!call.is_recorded()) tell_watch(target, protected_call);
  call.ends(arguments.values, arguments.count(), result);
  return result;
}

// Records a call of an operation without a rule if its first floating tensor is in a lower precision: its result then
// is too.
PyObject* answer_unlisted_watched(Target& target, const Arguments& arguments) {
  const Kind kind = first_floating_kind(arguments);
  if (!is_lower(kind) || is_left_alone(arguments)) return call_original(target, arguments);
  watch::Call call(&target);
  PyObject* result = call_original(target, arguments);
  const Decision decision{rules::precision_of(kind), Reason::unlisted};
  count(target, decision, {});
  tell_watch(target, decision);
  call.ends(arguments.values, arguments.count(), result);
  return result;
}

// Counts a call under disable_casts. Without the watch such calls are not counted, and so cost nothing.
PyObject* answer_disabled_watched(Target& target, const Arguments& arguments) {
  const bool has_rule = rule_of_lists(target).action != Action::none || target.unlisted->action != Action::none;
  if (!has_rule || (!policy_is_installed && thread_state.region == nullptr)) return call_original(target, arguments);
  watch::Call call(&target);
  PyObject* result = call_original(target, arguments);
  constexpr Decision disabled{Precision::unchanged, Reason::disabled};
  count(target, disabled, {});
  tell_watch(target, disabled);
  call.ends(arguments.values, arguments.count(), result);
  return result;
}

// The functions that make a call. They are exchanged while calls are watched, so that a call does not check for the
// watch.
struct Answers {
  PyObject* (*by_rule)(Target&, const Rule&, const Arguments&);
  PyObject* (*in_protected_region)(Target&, const Arguments&);
  PyObject* (*under_disable_casts)(Target&, const Arguments&);
  PyObject* (*unlisted)(Target&, const Arguments&);
};
constexpr Answers unwatched{&answer_by_rule<false>, &answer_protected, &call_original, &call_original};
Answers answers = unwatched;

// Returns the lists' rule for a call of the target that has a lowered tensor among its arguments.
const Rule& rule_with_lowered_inputs(const Target& target) {
  const Rule& rule = rule_of_lists(target);
  return rule.rule_for_lowered == nullptr ? rule : *rule.rule_for_lowered;
}

rules::RuleSource choose_rule_source(const Target& target) {
  const ThreadState& state = thread_state;
  struct {
    const Target& target;
    [[nodiscard]] bool is_users_function() const { return target.shape == host::Shape::users_function; }
    [[nodiscard]] bool records_gradients() const { return host::grad_is_enabled(); }
  } const facts{target};
  return rules::choose_rule_source({.casts_are_disabled = casts_are_disabled(),
                                    .disabled_by_region = state.disabled_by_region,
                                    .has_lists = policy_is_installed || state.region != nullptr,
                                    .lists_are_suspended = state.lists_suspended,
                                    .until_tracking = state.suspended_until_tracking},
                                   facts);
}

PyObject* answer_by_lists(Target& target, const Arguments& arguments) {
  const rules::RuleSource source = choose_rule_source(target);
  if (source == rules::RuleSource::none) return answers.under_disable_casts(target, arguments);
  trace_steps_of(target);
  rules::trace("the rule comes from", rules::name(source));
  if (source == rules::RuleSource::protected_region) return answers.in_protected_region(target, arguments);
  // Read once: another policy may be installed while the arguments are read.
  const Rule* rule = source == rules::RuleSource::lists ? &rule_of_lists(target) : target.unlisted;
  if (rule->action == Action::none) {
    if (rule->rule_for_lowered == nullptr || !holds_lower_tensor(arguments)) {
      // A Python function of torch that only other lists name: the current lists apply to the operations that it calls.
      return target.is_python() ? call_python(target, arguments) : answers.unlisted(target, arguments);
    }
    rule = rule->rule_for_lowered;
  }
  if (rule->conditions.sparse_keyword != nullptr && has_sparse_gradient(*rule, arguments)) [[unlikely]] {
    rule = target.unlisted;
    if (rule->action == Action::none) return call_original(target, arguments);
  }
  return answers.by_rule(target, *rule, arguments);
}

Owned cast_timed(PyObject* tensor, Kind from, Kind to, tensor::CastResult& seen) {
  const watch::CastTime time;
  return tensor::untimed_makers.cast(tensor, from, to, seen);
}

void convert_timed(PyObject* tensor, const void* source, Kind from, void* target, Kind to, std::int64_t count) {
  const watch::CastTime time;
  tensor::untimed_makers.convert(tensor, source, from, target, to, count);
}

}  // namespace

void watch_calls(bool watched) noexcept {
  answers = watched ? Answers{&answer_by_rule_watched, &answer_protected_watched, &answer_disabled_watched,
                              &answer_unlisted_watched}
                    : unwatched;
  tensor::makers = watched ? tensor::Makers{&cast_timed, &convert_timed} : tensor::untimed_makers;
}

PyObject* answer(Target& target, const Arguments& arguments) {
  if (!target.counts_no_version) [[likely]]
    return answer_by_lists(target, arguments);
  weights::arguments_escape(arguments.values, arguments.count());
  PyObject* result = answer_by_lists(target, arguments);
  if (result != nullptr) weights::arguments_escape(arguments.values, arguments.count());
  return result;
}

int answer_assignment(Target& target, PyObject* tensor, PyObject* key, PyObject* value, objobjargproc original) {
  const Rule& rule = rule_with_lowered_inputs(target);
  if (value == nullptr || casts_are_disabled() || rule.action == Action::none) {
    return original(tensor, key, value);
  }
  const Kind to = host::kind_of(tensor);
  if (!is_floating(to)) return original(tensor, key, value);
  const bool number = is_number(value);
  const Kind from = number ? Kind::other : host::kind_of(value);
  if (!number && (!is_floating(from) || from == to)) return original(tensor, key, value);
  Tally tally;
  Owned made;
  if (number) {
    if (to != Kind::f32) made = saturated(value, to);
    if (!made && PyErr_Occurred() != nullptr) return -1;
    if (!made) return original(tensor, key, value);
  } else {
    if (is_decided_elsewhere({&tensor, 1, nullptr})) return original(tensor, key, value);
    if (const auto reason = reason_against_casts(thread_state)) {
      report(target, {Precision::unchanged, *reason}, {});
      return original(tensor, key, value);
    }
    if (is_for_another_device(thread_state.region, {&tensor, 1, nullptr})) return original(tensor, key, value);
    made = tensor::cast(value, from, to, tally.made);
    if (!made) {
      if (!cast_refused()) return -1;
      clear_error();
      return original(tensor, key, value);
    }
    ++tally.casts;
  }
  const int result = original(tensor, key, made.get());
  made.reset();
  if (result == 0) report(target, {rules::precision_of(to), number ? Reason::scalar : rule.reason}, tally);
  return result;
}

// True if this key may select a value several times, as lists and tensors may. Numbers, slices, None and Ellipsis
// select each value at most once.
static bool may_pick_twice(PyObject* key) {
  if (PyTuple_Check(key)) {
    return std::any_of(PySequence_Fast_ITEMS(key), PySequence_Fast_ITEMS(key) + PyTuple_GET_SIZE(key),
                       [](PyObject* part) { return PyTuple_Check(part) || may_pick_twice(part); });
  }
  return !PyLong_Check(key) && !PySlice_Check(key) && key != Py_None && key != Py_Ellipsis;
}

PyObject* answer_subscript(Target& target, PyObject* tensor, PyObject* key, binaryfunc original) {
  if (!may_pick_twice(key) || casts_are_disabled()) return original(tensor, key);
  const Kind kind = host::kind_of(tensor);
  const Rule& rule = rule_with_lowered_inputs(target);
  const bool is_recorded = is_lower(kind) && host::grad_is_enabled() && host::requires_grad(tensor);
  if (!is_recorded || rule.conditions.adds_up == nullptr) return original(tensor, key);
  PyObject* const values[] = {tensor, key};
  const bool is_left = is_left_alone({values, 1, nullptr});
  const rules::Answer adds_up = is_left ? rules::Answer::no : ask(rule.conditions.adds_up, {values, 2, nullptr});
  if (adds_up == rules::Answer::failed) return nullptr;
  if (adds_up == rules::Answer::no) return original(tensor, key);
  Tally tally;
  Owned made = tensor::cast(tensor, kind, Kind::f32, tally.made);
  if (!made) {
    if (!cast_refused()) return nullptr;
    clear_error();
    return original(tensor, key);
  }
  ++tally.casts;
  const Owned picked(original(made.get(), key));
  made.reset();
  Owned result = picked ? rounded(picked.get(), kind, tally) : nullptr;
  if (result) report(target, {Precision::fp32, Reason::sums}, tally);
  return result.release();
}

}  // namespace habana_mp::engine

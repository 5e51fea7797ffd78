#include "engine/call.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/attempt.hpp"
#include "engine/known_tensors.hpp"
#include "engine/modules.hpp"
#include "engine/originals.hpp"
#include "engine/products.hpp"
#include "engine/region.hpp"
#include "engine/reporting.hpp"
#include "errors.hpp"
#include "host/modes.hpp"
#include "host/tensors.hpp"
#include "rules/decide.hpp"
#include "rules/rule_source.hpp"
#include "weights/cache.hpp"
#include "weights/escapes.hpp"

namespace habana_mp::engine {

using rules::Plan;
using rules::RuleSource;
using rules::Try;
using rules::Way;

namespace {

PyObject* refuse(const Target& target) {
  PyErr_Format(PyExc_RuntimeError,
               "%s is refused in a float16 region: its gradient may not fit into float16, and a cast of its input to "
               "float32 would not help, since the gradient goes back through that cast. Leave out the sigmoid before "
               "it and use torch.nn.functional.binary_cross_entropy_with_logits (torch.nn.BCEWithLogitsLoss for "
               "torch.nn.BCELoss), which is safe, or compute it in float32 under hmp.disable_casts()",
               target.operation.c_str());
  return nullptr;
}

// Counts a call that raised, with the decision made for it, and returns `result`. Checkpointing, for example, ends a
// recomputation with an exception.
PyObject* counted_if_failed(Owned result, const Facts& facts, Decision decision, const CastContext& context) {
  if (!result) report(facts.target, decision, context);
  return result.release();
}

// True if a call that failed may be made again, since the casts of weights that took its device's memory are gone.
bool has_more_memory(const Facts& facts) {
  return host::is_out_of_memory_error() && rules::may_repeat(facts.rule, facts) && weights::gives_memory_back();
}

// Inlined: each extra frame costs several nanoseconds on return.
[[gnu::always_inline]] inline PyObject* call_with_casts(const Facts& facts, Plan plan) {
  Attempt attempt{plan};
  Owned result = attempt_with_casts(facts, attempt);
  if (!result && has_more_memory(facts)) [[unlikely]] {
    attempt.context = {};
    attempt.made = true;
    result = attempt_with_casts(facts, attempt);
  }
  if (result && plan.computed_in != plan.to) result = rounded(result.get(), plan.to, attempt.context);
  if (!result) {
    const bool changed_anything = attempt.context.casts != 0 || attempt.scalar_changed;
    const rules::Failure failure{.step = Try::with_casts,
                                 .was_as_written = attempt.made && !changed_anything,
                                 .casts_were_made = attempt.made,
                                 .changed_anything = changed_anything};
    Owned again = try_again(rules::next_try(facts.rule, failure, facts), failure, facts);
    return counted_if_failed(std::move(again), facts, plan.decision, attempt.context);
  }
  if (attempt.scalar_changed) plan.decision = {plan.decision.precision, Reason::scalar};
  report(facts.target, plan.decision, attempt.context);
  return remember_if_lowered(facts, plan, attempt.context, result.get()) ? result.release() : nullptr;
}

// Makes a call whose plan is neither `with_casts` nor `as_written`.
PyObject* call_otherwise(const Facts& facts, const Plan& plan) {
  switch (plan.way) {
    case Way::leave:
    case Way::unlisted_rule:  // the target has no such rule
      report(facts.target, plan.decision, {});
      return call_original(facts.target, facts.arguments);
    case Way::leave_to_outer:
      return call_deferred(facts.target, facts.arguments);
    case Way::without_lowering:
      return counted_if_failed(call_without_lowering(facts), facts, plan.decision, {});
    case Way::refuse:
      return refuse(facts.target);
    default:  // Way::failed
      return nullptr;
  }
}

// Makes a call whose inputs need no cast.
PyObject* call_as_written(const Facts& facts, const Plan& plan) {
  const bool is_seen = host::function_mode_is_on();
  if (facts.rule.execution.form != ProductForm::none && !is_seen) {
    const rules::Answer is_wrong = plan.to == Kind::bf16 ? facts.wrong_in_bf16() : rules::Answer::no;
    if (is_wrong == rules::Answer::failed) return nullptr;
    const bool in_float32 = is_wrong == rules::Answer::yes;
    if (in_float32 || is_computed_here(facts.rule, facts.arguments, plan.to)) {
      return call_lowered(facts, facts.arguments, plan.to, in_float32).release();
    }
  }
  return facts.target.equivalent && !is_seen ? call_without_modes(facts.target, facts.arguments)
                                             : call_original(facts.target, facts.arguments);
}

// Returns the decision to report for a call that is made as it is written. An optimizer's step has its own reason, and
// no place where nothing is cast counts as outside of modules.
Decision decision_to_report(Decision decision) {
  if (thread_state.optimizer_steps == 0 && decision.reason != Reason::outside) [[likely]]
    return decision;
  const std::optional<Reason> against = reason_against_casts(thread_state);
  const bool is_told = against && (*against == Reason::optimizer_step || decision.reason == Reason::outside);
  const bool is_given = decision.reason == Reason::explicit_dtype || decision.reason == Reason::explicit_out;
  return is_told ? Decision{is_given ? decision.precision : Precision::unchanged, *against} : decision;
}

}  // namespace

// Not inlined, so that calls which `answer` ends early need no stack space for a reading.
[[gnu::noinline]] PyObject* answer_by_rule(Target& target, const Rule& first, const Arguments& arguments) {
  const Rule* rule = &first;
  std::optional<Decision> shown;  // the decision to report, if it is not the plan's
  for (;;) {
    Reading reading(arguments.count());
    read(*rule, arguments, reading);
    if (thread_state.in_model && (reading.present.kinds & lower_kinds) != 0) note_lower_parameters(arguments);
    const Facts facts{{target, *rule, arguments, reading}};
    const Plan plan = rules::decide(*rule, reading, facts);
    if (plan.leaves_numbers) [[unlikely]]
      leave_out_numbers(facts, reading);
    if (plan.way == Way::with_casts) return call_with_casts(facts, plan);
    if (plan.way == Way::unlisted_rule && target.unlisted->action != Action::none) {
      rule = target.unlisted;
      if (rules::has(plan.decision.reason, rules::over_unlisted)) shown = plan.decision;
      continue;
    }
    if (plan.way != Way::as_written) return call_otherwise(facts, plan);
    PyObject* result = call_as_written(facts, plan);
    if (result == nullptr && has_more_memory(facts)) [[unlikely]]
      result = call_original(target, arguments);
    if (result == nullptr) [[unlikely]] {
      const bool holds_lower =
          is_lower(plan.to) || (reading.explicit_out && (reading.present.kinds & lower_kinds) != 0);
      result = counted_if_failed(try_plain_again(holds_lower, facts), facts, shown.value_or(plan.decision), {});
      if (result != nullptr && reading.explicit_out) weights::tensor_escapes(result);
      return result;
    }
    // In another release of torch the operation may not increment the version counter of the tensor that it writes to.
    if (plan.decision.reason == Reason::explicit_out) weights::tensor_escapes(result);
    if (plan.decision.reason == Reason::in_place) note_update_of_weight(arguments);
    report(target, decision_to_report(shown.value_or(plan.decision)), {});
    return result;
  }
}

// Answers a call in a region of torch.autocast(enabled=False).
[[gnu::noinline]] PyObject* answer_protected(Target& target, const Arguments& arguments) {
  const Rule& rule = *target.unlisted;
  Reading reading(arguments.count());
  const Facts facts{{target, rule, arguments, reading}};
  const bool may_repeat = rule.action != Action::none && rules::may_repeat(rule, facts);
  if (may_repeat && rule.is_product) {
    read(rule, arguments, reading);
    const Plan plan = rules::decide_protected(rule, reading, facts);
    if (plan.way == Way::with_casts) return call_with_casts(facts, plan);
    if (plan.way != Way::as_written) return call_otherwise(facts, plan);
  }
  Owned result(call_original(target, arguments));
  if (!result && may_repeat) {
    bool holds_lower = false;
    {
      const HeldError held;
      if (!rule.is_product) read(rule, arguments, reading);
      holds_lower = rules::draft_protected(rule, reading, facts).to == Kind::f32;
    }
    result = try_plain_again(holds_lower, facts);
    if (result) return result.release();
  }
  const HeldError held;
  count_unlogged(target, protected_call(arguments));
  return result.release();
}

// ---- choice of the rule ---------------------------------------------------------------------------------------------

const Rule& rule_of_lists(const Target& target) {
  const RuleSet* region = thread_state.region;
  if (region == nullptr || target.index == no_index) [[likely]]
    return *target.listed;
  return *region->rules[target.index];
}

namespace {

// The facts on which the choice of a call's rule depends. The rules are read once, since another policy may be
// installed while the arguments are read.
struct RulesOfCall {
  RulesOfCall(const Target& called, const Arguments& given)
      : target(called), arguments(given), listed(rule_of_lists(called)), unlisted(*called.unlisted) {}

  [[nodiscard]] bool is_user_function() const { return target.kind == host::CallableKind::user_function; }
  [[nodiscard]] bool records_gradients() const { return host::grad_is_enabled(); }
  [[nodiscard]] bool has_listed_rule() const { return listed.action != Action::none; }
  [[nodiscard]] bool has_rule_for_lowered() const { return listed.rule_for_lowered != nullptr; }
  [[nodiscard]] bool has_unlisted_rule() const { return unlisted.action != Action::none; }
  [[nodiscard]] bool holds_lower_tensor() const { return engine::holds_lower_tensor(arguments); }
  [[nodiscard]] bool has_sparse_gradient() const {
    const Conditions& conditions = (has_listed_rule() ? listed : *listed.rule_for_lowered).conditions;
    if (conditions.sparse_keyword == nullptr) return false;
    PyObject* const name = PyTuple_GET_ITEM(conditions.sparse_keyword, 0);
    return find_argument(arguments, conditions.sparse_position, name) == Py_True;
  }

  const Target& target;
  const Arguments& arguments;
  const Rule& listed;
  const Rule& unlisted;
};

RuleSource choose_rule_source(const RulesOfCall& rules) {
  const ThreadState& state = thread_state;
  return rules::choose_rule_source({.casts_are_disabled = casts_are_disabled(),
                                    .disabled_by_region = state.disabled_by_region,
                                    .has_lists = policy_is_installed || state.region != nullptr,
                                    .lists_are_suspended = state.lists_suspended,
                                    .until_tracking = state.suspended_until_tracking},
                                   rules);
}

PyObject* answer_by_lists(Target& target, const Arguments& arguments) {
  const RulesOfCall rules(target, arguments);
  const RuleSource source = choose_rule_source(rules);
  if (source == RuleSource::disabled) return answers.under_disable_casts(target, arguments);
  trace_steps_of(target);
  rules::trace("the rule comes from", rules::name(source));
  switch (source) {
    case RuleSource::lists:
      return answers.by_rule(target, rules.listed, arguments);
    case RuleSource::lowered_inputs:
      return answers.by_rule(target, *rules.listed.rule_for_lowered, arguments);
    case RuleSource::unlisted:
      return answers.by_rule(target, rules.unlisted, arguments);
    case RuleSource::protected_region:
      return answers.in_protected_region(target, arguments);
    case RuleSource::as_written:
      return call_original(target, arguments);
    default:
      // A Python function of torch that only other lists name: the current lists apply to the operations that it calls.
      return target.is_python() ? call_python(target, arguments) : answers.unlisted(target, arguments);
  }
}

}  // namespace

PyObject* answer(Target& target, const Arguments& arguments) {
  if (!target.counts_no_version) [[likely]]
    return answer_by_lists(target, arguments);
  weights::arguments_escape(arguments.values, arguments.count());
  PyObject* result = answer_by_lists(target, arguments);
  if (result != nullptr) weights::arguments_escape(arguments.values, arguments.count());
  return result;
}

// ---- reading and assigning elements: most such calls leave nothing to decide, and are neither decided nor counted
// ----

namespace {

// True if this key may select a value several times, as lists and tensors may. Numbers, slices, None and Ellipsis
// select each value at most once.
bool may_pick_twice(PyObject* key) {
  if (PyTuple_Check(key)) {
    return std::any_of(PySequence_Fast_ITEMS(key), PySequence_Fast_ITEMS(key) + PyTuple_GET_SIZE(key),
                       [](PyObject* part) { return PyTuple_Check(part) || may_pick_twice(part); });
  }
  return !PyLong_Check(key) && !PySlice_Check(key) && key != Py_None && key != Py_Ellipsis;
}

// True if the value has another precision than the tensor, or is a number that rule 9 clamps.
bool may_need_cast(PyObject* tensor, PyObject* value) {
  const Kind to = host::kind_of(tensor);
  if (!is_floating(to)) return false;
  if (is_number(value)) return is_lower(to) && saturated(value, to).has_value();
  const Kind from = host::kind_of(value);
  return is_floating(from) && from != to;
}

}  // namespace

int answer_assignment(Target& target, PyObject* tensor, PyObject* key, PyObject* value) {
  if (value == nullptr || !may_need_cast(tensor, value)) return target.original_assignment(tensor, key, value);
  PyObject* const values[] = {tensor, key, value};
  return Owned(answer(target, {values, 3, nullptr})) ? 0 : -1;
}

PyObject* answer_subscript(Target& target, PyObject* tensor, PyObject* key) {
  const bool may_add_up =
      may_pick_twice(key) && is_lower(host::kind_of(tensor)) && host::grad_is_enabled() && host::requires_grad(tensor);
  if (!may_add_up) return target.original_subscript(tensor, key);
  PyObject* const values[] = {tensor, key};
  return answer(target, {values, 2, nullptr});
}

}  // namespace habana_mp::engine

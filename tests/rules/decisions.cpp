// The decision about a call from facts that are written down here: compiled without Python and torch. One call for each
// row of the table, and what is around it: protected regions, the sources of rules, and repeated calls.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "rules/decide.hpp"
#include "rules/retry.hpp"
#include "rules/rule_source.hpp"

using habana_mp::Kind;
using namespace habana_mp::rules;

namespace {

struct Facts {
  bool python_function = false;
  bool user_function = false;
  bool records = false;
  bool listed_rule = true;
  bool rule_for_lowered = false;
  bool unlisted_rule = true;
  bool lower_tensor = false;
  bool sparse_gradient = false;
  bool decided_elsewhere = false;
  std::optional<Reason> at_place{};
  bool exact_caller = false;
  bool float32_alone = false;
  bool another_device = false;
  std::optional<Present> with_dimensions{};
  bool one_tensor = false;
  bool sparse_tensor = false;
  bool number_beyond = false;
  bool number_first = false;
  bool condition_on_sums = false;
  Answer product = Answer::yes;
  Answer fused = Answer::no;
  Answer wrong = Answer::no;
  Answer sums = Answer::no;
  bool products_can_be_lowered = true;
  bool in_a_transform = false;
  bool by_torch = true;
  bool by_cast = true;
  bool lower_state = false;
  mutable std::string asked{};

  template <typename T>
  T tell(char letter, const T& answer) const {
    asked += letter;
    return answer;
  }
  bool is_python_function() const { return tell('f', python_function); }
  bool is_user_function() const { return tell('y', user_function); }
  bool records_gradients() const { return tell('g', records); }
  bool has_listed_rule() const { return listed_rule; }
  bool has_rule_for_lowered() const { return rule_for_lowered; }
  bool has_unlisted_rule() const { return unlisted_rule; }
  bool holds_lower_tensor() const { return tell('h', lower_tensor); }
  bool has_sparse_gradient() const { return tell('G', sparse_gradient); }
  bool is_decided_elsewhere() const { return tell('d', decided_elsewhere); }
  std::optional<Reason> place() const { return tell('p', at_place); }
  bool caller_is_exact() const { return tell('e', exact_caller); }
  bool is_of_float32_alone_within_modules() const { return tell('4', float32_alone); }
  bool is_for_another_device() const { return tell('a', another_device); }
  std::optional<Present> inputs_with_dimensions() const { return tell('i', with_dimensions); }
  bool holds_one_tensor() const { return tell('1', one_tensor); }
  bool holds_sparse_tensor() const { return tell('s', sparse_tensor); }
  bool has_number_beyond(Kind) const { return tell('n', number_beyond); }
  bool first_input_is_a_number() const { return tell('0', number_first); }
  bool may_add_up() const { return condition_on_sums; }
  Answer makes_product() const { return tell('m', product); }
  Answer is_fused() const { return tell('F', fused); }
  Answer wrong_in_bf16() const { return tell('w', wrong); }
  Answer adds_up() const { return tell('u', sums); }
  bool may_lower_products(Kind) const { return tell('l', products_can_be_lowered); }
  bool mixes_in_a_transform() const { return tell('x', in_a_transform); }
  bool torch_raised() const { return tell('r', by_torch); }
  bool cast_refused() const { return tell('c', by_cast); }
  bool is_left_alone() const { return habana_mp::rules::is_left_alone(*this); }
  bool updates_lower_state() const { return tell('o', lower_state); }
};

int failures = 0;

void check_that(bool holds, const char* text, int line) {
  if (holds) return;
  ++failures;
  std::printf("line %d: %s\n", line, text);
}
#define CHECK(condition) check_that(condition, #condition, __LINE__)

Inputs inputs_of(std::initializer_list<Kind> kinds) {
  Inputs inputs;
  for (const Kind kind : kinds) inputs.present.note(kind);
  return inputs;
}

Rule lowering() { return {.action = Action::precision, .to = Kind::bf16}; }

// What a call asks for in the table: each question may fail or costs much.
constexpr std::string_view costly = "dpemFwultx";

// Decides, and checks that no costly question is asked twice, and none if nothing has to be cast.
Plan decided(const Rule& rule, const Inputs& inputs, const Facts& facts) {
  facts.asked.clear();
  const Plan plan = decide(rule, inputs, facts);
  for (const char letter : costly) {
    const auto times = std::count(facts.asked.begin(), facts.asked.end(), letter);
    CHECK(times <= (plan.way == Way::as_written ? 0 : 1));
  }
  return plan;
}

bool is(const Plan& plan, Way way, Kind to, Precision precision, Reason reason = Reason::list) {
  return plan.way == way && plan.to == to && plan.decision.precision == precision && plan.decision.reason == reason;
}

void check_drafts() {
  const Inputs one = inputs_of({Kind::f32}), mixed = inputs_of({Kind::bf16, Kind::f32});
  const auto by_action = [&](Action action, const Facts& facts = {}) {
    return decided({.action = action}, mixed, facts);
  };
  CHECK(is(decided(lowering(), one, {}), Way::with_casts, Kind::bf16, Precision::bf16));
  CHECK(is(decided({.action = Action::precision, .to = Kind::f16}, one, {}), Way::with_casts, Kind::f16,
           Precision::fp16));
  CHECK(is(decided(lowering(), inputs_of({Kind::bf16}), {}), Way::as_written, Kind::bf16, Precision::bf16));
  CHECK(is(by_action(Action::first_input), Way::with_casts, Kind::bf16, Precision::bf16));
  CHECK(is(by_action(Action::scalars), Way::with_casts, Kind::bf16, Precision::bf16));
  CHECK(is(by_action(Action::scalars, {.number_first = true}), Way::leave, Kind::bf16, Precision::bf16));
  CHECK(is(by_action(Action::operands), Way::with_casts, Kind::bf16, Precision::bf16));
  CHECK(is(decided({.action = Action::operands}, inputs_of({Kind::f16}), {}), Way::as_written, Kind::f16,
           Precision::fp16));
  for (const Inputs& others : {one, inputs_of({Kind::bf16, Kind::f16})}) {
    CHECK(is(decided({.action = Action::operands}, others, {}), Way::as_written, Kind::other, Precision::unchanged));
  }
  CHECK(is(by_action(Action::none), Way::as_written, Kind::other, Precision::unchanged));
  CHECK(is(by_action(Action::refused), Way::refuse, Kind::other, Precision::unchanged));
  CHECK(is(by_action(Action::refused, {.another_device = true}), Way::as_written, Kind::other, Precision::unchanged));
  CHECK(is(decided({.action = Action::refused}, inputs_of({Kind::other}), {}), Way::as_written, Kind::other,
           Precision::unchanged, Reason::ineligible));

  Inputs given = mixed;
  given.target = Kind::f32;
  CHECK(is(decided({.action = Action::in_place}, given, {}), Way::with_casts, Kind::f32, Precision::fp32));
  given.target = Kind::other;
  CHECK(is(decided({.action = Action::in_place}, given, {}), Way::as_written, Kind::other, Precision::unchanged,
           Reason::ineligible));
  given.explicit_dtype = true;
  CHECK(is(decided(lowering(), given, {}), Way::as_written, Kind::other, Precision::unchanged, Reason::explicit_dtype));
  given.explicit_out = true;
  CHECK(is(decided(lowering(), given, {}), Way::as_written, Kind::other, Precision::unchanged, Reason::explicit_out));
  for (const Inputs& left : {inputs_of({}), inputs_of({Kind::other}), inputs_of({Kind::f32, Kind::wide})}) {
    CHECK(is(decided(lowering(), left, {}), Way::as_written, Kind::other, Precision::unchanged, Reason::ineligible));
  }
}

// Rule 2: a tensor without dimensions widens none that has some, and stays what it is if the operation promotes it.
void check_widest() {
  const Inputs mixed = inputs_of({Kind::f32, Kind::bf16});
  Rule widest{.action = Action::widest};
  CHECK(is(decided(widest, inputs_of({Kind::bf16}), {}), Way::as_written, Kind::bf16, Precision::bf16));
  CHECK(is(decided(widest, inputs_of({Kind::bf16, Kind::f16}), {}), Way::with_casts, Kind::f32, Precision::fp32));
  CHECK(is(decided(widest, inputs_of({Kind::bf16}), {.with_dimensions = Present{}}), Way::as_written, Kind::bf16,
           Precision::bf16));
  Facts numbers{.with_dimensions = inputs_of({Kind::bf16}).present};
  Plan plan = decided(widest, mixed, numbers);
  CHECK(is(plan, Way::with_casts, Kind::bf16, Precision::bf16) && !plan.leaves_numbers);
  widest.promotes = true;
  CHECK(is(decided(widest, mixed, numbers), Way::as_written, Kind::bf16, Precision::bf16));
  numbers.with_dimensions = mixed.present;
  plan = decided(widest, mixed, numbers);
  CHECK(is(plan, Way::with_casts, Kind::f32, Precision::fp32) && !plan.leaves_numbers);
  widest.gives_dimensions = true;
  numbers.with_dimensions = inputs_of({Kind::bf16}).present;
  CHECK(is(decided(widest, mixed, numbers), Way::with_casts, Kind::f32, Precision::fp32));
}

void check_table() {
  const Rule rule = lowering(), exact{.action = Action::precision, .to = Kind::f32};
  const Inputs one = inputs_of({Kind::f32}), lower = inputs_of({Kind::bf16}),
               mixed = inputs_of({Kind::f32, Kind::bf16});
  const auto lowered = [&](const Facts& facts) { return decided(rule, one, facts); };
  const auto with = [](Rule of, bool Rule::*trait) {
    of.*trait = true;
    return of;
  };

  // The surroundings of the call.
  CHECK(is(lowered({.decided_elsewhere = true}), Way::leave_to_outer, Kind::bf16, Precision::bf16));
  CHECK(is(lowered({.at_place = Reason::worker}), Way::leave, Kind::bf16, Precision::unchanged, Reason::worker));
  const Facts in_library{.exact_caller = true, .float32_alone = true};
  CHECK(is(lowered(in_library), Way::unlisted_rule, Kind::bf16, Precision::unchanged, Reason::library));
  CHECK(is(decided(exact, lower, in_library), Way::with_casts, Kind::f32, Precision::fp32));
  Rule by_parts = with(rule, &Rule::is_elementwise);
  by_parts.reason = Reason::parts;
  CHECK(is(decided(by_parts, one, in_library), Way::with_casts, Kind::bf16, Precision::bf16, Reason::parts));
  by_parts.reason = Reason::float32_result;
  CHECK(decided(by_parts, one, in_library).way == Way::unlisted_rule);
  const Rule elementwise = with(rule, &Rule::is_elementwise);
  CHECK(is(decided(elementwise, one, {.float32_alone = true}), Way::unlisted_rule, Kind::bf16, Precision::fp32,
           Reason::arithmetic));
  CHECK(decided(elementwise, one, {}).way == Way::with_casts);
  CHECK(decided(with(exact, &Rule::is_elementwise), lower, {.float32_alone = true}).way == Way::with_casts);
  CHECK(lowered({.float32_alone = true}).way == Way::with_casts);
  CHECK(is(lowered({.another_device = true}), Way::leave, Kind::bf16, Precision::unchanged, Reason::other_device));
  for (const Facts& left : {Facts{.decided_elsewhere = true}, {.at_place = Reason::worker}, {.another_device = true}}) {
    CHECK(left.is_left_alone());
  }
  CHECK(!Facts{}.is_left_alone());

  // The inputs and the operation.
  const Facts single{.one_tensor = true};
  CHECK(is(decided(with(rule, &Rule::views_one), one, single), Way::leave, Kind::bf16, Precision::unchanged,
           Reason::view));
  CHECK(lowered(single).way == Way::with_casts && lowered({.number_first = true}).way == Way::with_casts);
  CHECK(decided(with(rule, &Rule::views_one), one, {}).way == Way::with_casts);
  const Facts no_product{.product = Answer::no};
  CHECK(is(lowered(no_product), Way::leave, Kind::f32, Precision::fp32, Reason::no_product));
  CHECK(is(decided(rule, mixed, no_product), Way::with_casts, Kind::f32, Precision::fp32, Reason::no_product));
  const Rule inside = with(rule, &Rule::products_inside);
  Plan plan = decided(inside, one, {});
  CHECK(plan.way == Way::with_casts && plan.is_inside && !plan.is_fused && plan.computed_in == Kind::bf16);
  plan = decided(inside, one, {.fused = Answer::yes, .products_can_be_lowered = false});
  CHECK(plan.way == Way::with_casts && !plan.is_inside && plan.is_fused);
  CHECK(decided(inside, one, {.products_can_be_lowered = false}).way == Way::unlisted_rule);
  plan = decided(with(exact, &Rule::products_inside), lower, {});
  CHECK(!plan.is_inside && !plan.is_fused && !plan.in_float32);
  plan = lowered({.products_can_be_lowered = false});
  CHECK(plan.way == Way::with_casts && !plan.is_inside && !plan.is_fused && !plan.in_float32 && !plan.leaves_numbers);
  CHECK(lowered({.wrong = Answer::yes}).in_float32);
  for (const Facts& failing : {Facts{.product = Answer::failed},
                               {.fused = Answer::failed},
                               {.wrong = Answer::failed},
                               {.condition_on_sums = true, .sums = Answer::failed}}) {
    CHECK(is(lowered(failing), Way::failed, Kind::bf16, Precision::bf16));
    const bool asks = failing.product == Answer::failed;
    CHECK(decided(exact, lower, failing).way == (asks ? Way::failed : Way::with_casts));
  }
  const Rule half{.action = Action::precision, .to = Kind::f16};
  CHECK(decided(half, one, {.wrong = Answer::failed}).way == Way::with_casts);
  const Facts sums{.condition_on_sums = true, .sums = Answer::yes}, no_sums{.condition_on_sums = true};
  for (const Inputs& any : {one, lower}) {
    plan = decided(rule, any, sums);
    CHECK(is(plan, Way::with_casts, Kind::bf16, Precision::fp32, Reason::sums) && plan.computed_in == Kind::f32);
  }
  CHECK(is(decided(rule, lower, no_sums), Way::leave, Kind::bf16, Precision::bf16));
  CHECK(is(lowered(no_sums), Way::with_casts, Kind::bf16, Precision::bf16));
  CHECK(decided(exact, one, sums).way == Way::as_written && lowered({.sums = Answer::yes}).computed_in == Kind::bf16);

  // Limits of torch, and numbers that are brought into the range.
  const Facts sparse{.sparse_tensor = true}, beyond{.number_beyond = true};
  for (const Inputs& any : {one, lower}) {
    CHECK(decided(with(rule, &Rule::is_product), any, sparse).way == Way::without_lowering);
  }
  CHECK(lowered(sparse).way == Way::with_casts && decided(rule, lower, sparse).way == Way::as_written);
  CHECK(decided(with(rule, &Rule::is_product), lower, {}).way == Way::as_written);
  CHECK(decided(with(rule, &Rule::is_product), one, {}).way == Way::with_casts);
  CHECK(decided(with(exact, &Rule::is_product), lower, sparse).way == Way::with_casts);
  CHECK(lowered({.in_a_transform = true}).way == Way::without_lowering);
  CHECK(decided(exact, lower, {.in_a_transform = true}).way == Way::with_casts);
  CHECK(decided(with(rule, &Rule::saturates), lower, beyond).way == Way::with_casts);
  CHECK(decided(with(rule, &Rule::saturates), lower, {}).way == Way::as_written);
  CHECK(decided(rule, lower, beyond).way == Way::as_written);
  CHECK(decided(with(exact, &Rule::saturates), one, beyond).way == Way::as_written);
}

void check_protected() {
  Rule rule{.action = Action::first_input, .reason = Reason::first_input};
  Inputs mixed = inputs_of({Kind::bf16, Kind::f32});
  const Facts facts;
  CHECK(draft_protected(rule, mixed, facts).to == Kind::f32);
  Inputs all_float32 = inputs_of({Kind::f32});
  CHECK(draft_protected(rule, all_float32, facts).to == Kind::other);
  rule.is_product = true;
  const Plan plan = decide_protected(rule, mixed, facts);
  CHECK(plan.way == Way::with_casts && plan.computed_in == Kind::f32);
  CHECK(decide_protected(rule, inputs_of({Kind::bf16}), facts).way == Way::as_written);
}

void check_rule_sources() {
  Facts facts;
  CHECK(choose_rule_source({}, facts) == RuleSource::lists);
  CHECK(choose_rule_source({.casts_are_disabled = true, .has_lists = true}, facts) == RuleSource::disabled);
  CHECK(choose_rule_source({.casts_are_disabled = true, .disabled_by_region = true}, facts) == RuleSource::disabled);
  CHECK(choose_rule_source({.casts_are_disabled = true, .disabled_by_region = true, .has_lists = true}, facts) ==
        RuleSource::protected_region);
  CHECK(choose_rule_source({.lists_are_suspended = true}, facts) == RuleSource::unlisted);
  CHECK(choose_rule_source({.lists_are_suspended = true, .until_tracking = true}, facts) == RuleSource::unlisted);
  facts.records = true;
  CHECK(choose_rule_source({.lists_are_suspended = true}, facts) == RuleSource::unlisted);
  CHECK(choose_rule_source({.lists_are_suspended = true, .until_tracking = true}, facts) == RuleSource::lists);
  facts.records = false;
  facts.python_function = true;  // one of torch's
  CHECK(choose_rule_source({.lists_are_suspended = true}, facts) == RuleSource::unlisted);
  facts.user_function = true;
  CHECK(choose_rule_source({.lists_are_suspended = true}, facts) == RuleSource::lists);
  CHECK(choose_rule_source({.lists_are_suspended = true, .until_tracking = true}, facts) == RuleSource::lists);

  // A cast cannot pass on a sparse gradient.
  facts = {};
  facts.sparse_gradient = true;
  CHECK(choose_rule_source({}, facts) == RuleSource::unlisted);
  facts.unlisted_rule = false;
  CHECK(choose_rule_source({}, facts) == RuleSource::as_written);
  CHECK(choose_rule_source({.lists_are_suspended = true}, facts) == RuleSource::nothing);
  facts.sparse_gradient = false;
  CHECK(choose_rule_source({}, facts) == RuleSource::lists);

  // Without a rule of the lists: only what is lower already follows their rule.
  facts = {};
  facts.listed_rule = false;
  facts.lower_tensor = true;
  CHECK(choose_rule_source({}, facts) == RuleSource::nothing);
  CHECK(facts.asked.find('h') == std::string::npos);
  facts.rule_for_lowered = true;
  CHECK(choose_rule_source({}, facts) == RuleSource::lowered_inputs);
  facts.sparse_gradient = true;
  CHECK(choose_rule_source({}, facts) == RuleSource::unlisted);
  facts.lower_tensor = facts.sparse_gradient = false;
  CHECK(choose_rule_source({}, facts) == RuleSource::nothing);
}

void check_ladder() {
  Facts facts;
  const Rule rule = lowering();
  const Rule in_place{.action = Action::in_place};
  Rule once = rule;
  once.is_not_repeated = true;
  const auto next = [&](const Rule& one, const Failure& failure) { return next_try(one, failure, facts); };

  CHECK(next(rule, {.step = Try::with_casts}) == Try::in_float32);
  CHECK(next(once, {.step = Try::with_casts}) == Try::give_up);
  CHECK(next(once, {.step = Try::with_casts, .casts_were_made = false}) == Try::in_float32);  // nothing was called
  CHECK(next(in_place, {.step = Try::with_casts}) == Try::as_written);
  CHECK(next(in_place, {.step = Try::with_casts, .was_as_written = true}) == Try::give_up);
  CHECK(next(rule, {.step = Try::in_float32}) == Try::as_written);
  CHECK(next(rule, {.step = Try::in_float32, .was_as_written = true}) == Try::give_up);
  CHECK(next(rule, {.step = Try::in_float32, .changed_anything = false}) == Try::give_up);
  CHECK(next(rule, {.step = Try::as_written}) == Try::give_up);
  facts.lower_state = true;
  CHECK(next(rule, {.step = Try::as_written}) == Try::in_precision_of_state);
  CHECK(next(rule, {.step = Try::in_precision_of_state}) == Try::give_up);
  CHECK(next(rule, {.step = Try::give_up}) == Try::give_up);
  // The caller sees an error that is no refusal, or else that of the call as it is written.
  const Failure changed{.step = Try::in_float32};
  const Failure unchanged{.changed_anything = false};
  const Failure written{.step = Try::as_written};
  CHECK(tells_more(changed, false, true) && !tells_more(changed, true, true) && !tells_more(changed, false, false));
  CHECK(tells_more(written, true, true) && tells_more(unchanged, true, true) && !tells_more(written, true, false));
  CHECK(next_try_of_plain(rule, true, facts) == Try::in_float32);
  CHECK(next_try_of_plain(rule, false, facts) == Try::give_up);
  CHECK(next_try_of_plain(in_place, true, facts) == Try::give_up);
  CHECK(next_try_of_plain(once, true, facts) == Try::give_up);
  facts.at_place = Reason::construction;
  CHECK(next_try_of_plain(rule, true, facts) == Try::give_up);
  facts.at_place.reset();

  facts.python_function = true;
  CHECK(next(rule, {.step = Try::with_casts}) == Try::give_up);
  facts.python_function = false;
  facts.by_torch = false;
  CHECK(next(rule, {.step = Try::with_casts}) == Try::give_up);
  CHECK(next(rule, {.step = Try::in_float32}) == Try::give_up);
  CHECK(next(rule, {.step = Try::as_written}) == Try::give_up);
  CHECK(next(rule, {.step = Try::in_precision_of_state}) == Try::give_up);
  CHECK(next_try_of_plain(rule, true, facts) == Try::give_up);
  facts.by_cast = false;
  CHECK(next(rule, {.step = Try::with_casts, .casts_were_made = false}) == Try::give_up);
  CHECK(next(rule, {.step = Try::in_float32, .casts_were_made = false}) == Try::give_up);
}

}  // namespace

int main() {
  CHECK(!has(Reason::list, casts_off) && !has(Reason::arithmetic, casts_off) && has(Reason::arithmetic, over_unlisted));
  CHECK(has(Reason::library, casts_off) && has(Reason::library, over_unlisted) && !has(Reason::library, in_log));
  check_drafts();
  check_widest();
  check_table();
  check_protected();
  check_rule_sources();
  check_ladder();
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

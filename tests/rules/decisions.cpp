// The decision about a call from facts that are written down here: compiled without Python and torch.
//
// `serve` answers lines of numbers with what `decide` returns, for the property test: see test_decisions.py. Without an
// argument the program checks what is around `decide`: protected regions, the sources of rules, and repeated calls.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

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
  std::optional<Reason> at_place;
  bool exact_caller = false;
  bool float32_alone = false;
  bool another_device = false;
  std::optional<Present> with_dimensions;
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

// One line of numbers, in the order of test_decisions.py; the plan, and the letters of what was asked.
void answer(const std::string& line) {
  std::istringstream in(line);
  const auto number = [&in] {
    int value = 0;
    in >> value;
    return value;
  };
  const auto yes = [&] { return number() != 0; };
  const auto answer_of = [&] { return static_cast<Answer>(number()); };
  Rule rule;
  rule.action = static_cast<Action>(number());
  rule.to = static_cast<Kind>(number());
  rule.reason = static_cast<Reason>(number());
  for (bool Rule::*trait : {&Rule::promotes, &Rule::gives_dimensions, &Rule::saturates, &Rule::views_one,
                            &Rule::is_elementwise, &Rule::is_product, &Rule::products_inside}) {
    rule.*trait = yes();
  }
  Inputs inputs;
  Facts facts;
  Present with_dimensions;
  for (int count = number(); count > 0; --count) {
    const auto kind = static_cast<Kind>(number());
    inputs.present.note(kind);
    if (yes()) {
      with_dimensions.note(kind);
    } else {
      facts.with_dimensions.emplace();
    }
  }
  if (facts.with_dimensions) facts.with_dimensions = with_dimensions;
  inputs.target = static_cast<Kind>(number());
  inputs.explicit_out = yes();
  inputs.explicit_dtype = yes();
  for (bool Facts::*fact :
       {&Facts::decided_elsewhere, &Facts::exact_caller, &Facts::float32_alone, &Facts::another_device,
        &Facts::one_tensor, &Facts::sparse_tensor, &Facts::number_beyond, &Facts::number_first,
        &Facts::condition_on_sums, &Facts::products_can_be_lowered, &Facts::in_a_transform}) {
    facts.*fact = yes();
  }
  for (Answer Facts::*fact : {&Facts::product, &Facts::fused, &Facts::wrong, &Facts::sums}) {
    facts.*fact = answer_of();
  }
  if (const int place = number(); place >= 0) facts.at_place = static_cast<Reason>(place);
  const Plan plan = decide(rule, inputs, facts);
  std::cout << static_cast<int>(plan.way) << ' ' << static_cast<int>(plan.to) << ' '
            << static_cast<int>(plan.computed_in) << ' ' << static_cast<int>(plan.decision.precision) << ' '
            << row_of(plan.decision.reason).word << ' ' << plan.is_fused << ' ' << plan.is_inside << ' '
            << plan.leaves_numbers << " <" << facts.asked << ">\n"
            << std::flush;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "serve") == 0) {
    for (std::string line; std::getline(std::cin, line);) answer(line);
    return EXIT_SUCCESS;
  }
  CHECK(!has(Reason::list, casts_off) && !has(Reason::arithmetic, casts_off) && has(Reason::arithmetic, over_unlisted));
  CHECK(has(Reason::library, casts_off) && has(Reason::library, over_unlisted) && !has(Reason::library, in_log));
  check_protected();
  check_rule_sources();
  check_ladder();
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

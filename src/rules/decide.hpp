// Decides what is done with one call, from its rule, its inputs and the facts about it.
//
// This header depends on neither Python nor torch. Most facts are expensive, so each is requested from an object that
// the caller passes (`Facts`), one by one in the order of the table. engine/facts.hpp holds the facts of a real call;
// the tests have their own.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "rules/rule.hpp"
#include "rules/trace.hpp"

namespace habana_mp::rules {

// The way in which a call is made.
enum class Way : std::uint8_t {
  as_written,        // as written: no input has to be cast
  leave,             // as written, for the reason in Plan::decision
  leave_to_outer,    // as written: it is part of another operation, which was decided
  with_casts,        // with every input that may be cast in one precision
  without_lowering,  // in float32 if that is possible, else as written
  unlisted_rule,     // by the rule for suspended lists
  refuse,            // raises an error
  failed,            // a fact raised an exception, which is passed on
};

// Returns the words of the trace.
constexpr const char* name(Way way) {
  constexpr std::array names{"as written", "left alone",       "left to the outer operation",
                             "with casts", "without lowering", "by the rule for suspended lists",
                             "refused",    "an error"};
  return names[static_cast<std::size_t>(way)];
}

struct Plan {
  Way way = Way::as_written;
  Kind to = Kind::other;           // the precision that the rule gives; other: no cast
  Kind computed_in = Kind::other;  // that of the cast inputs: `to`, or float32 if the result is rounded to `to`
  Decision decision{};             // what is reported
  bool is_fused = false;           // one kernel computes the whole call
  bool is_inside = false;          // only the products inside are lowered
  // True if it is computed in float32 from inputs that were rounded to `to`, since torch's library gets it wrong in
  // `to`.
  bool in_float32 = false;
  // True if tensors without dimensions stay unchanged, since torch promotes them as it does numbers (rule 2).
  bool leaves_numbers = false;
};

// The kinds of some inputs, and the kind of the first floating input.
struct Present {
  Kinds kinds = 0;
  Kind first = Kind::other;

  void note(Kind kind) {
    kinds |= bit(kind);
    if (first == Kind::other && is_floating(kind)) first = kind;
  }
  [[nodiscard]] bool holds_one_precision() const { return std::has_single_bit(static_cast<Kinds>(kinds & floating)); }
  // Returns the one lower precision among the inputs, or `other`.
  [[nodiscard]] Kind one_lower() const {
    const auto lower = static_cast<Kinds>(kinds & lower_kinds);
    return lower == bit(Kind::bf16) ? Kind::bf16 : lower == bit(Kind::f16) ? Kind::f16 : Kind::other;
  }
  // Replaces the floating inputs by those of `rest`.
  void leave_only(const Present& rest) {
    kinds = static_cast<Kinds>((kinds & ~floating) | rest.kinds);
    first = rest.first;
  }
  // Rule 2: the precision of all inputs, or float32 if they differ.
  [[nodiscard]] Kind widest() const { return holds_one_precision() ? first : Kind::f32; }
};

// The inputs of a call, as far as rules depend on them.
struct Inputs {
  Present present;
  Kind target = Kind::other;  // of the tensor that an in-place operation writes into
  bool explicit_out = false;
  bool explicit_dtype = false;
  Precision given = Precision::unchanged;  // of that dtype
};

// The result of a condition whose evaluation may fail.
enum class Answer : std::uint8_t { no, yes, failed };

// Returns the precision that is reported for a cast to this kind. That of any other kind is fp32.
constexpr Precision precision_of(Kind kind) {
  return kind == Kind::bf16 ? Precision::bf16 : kind == Kind::f16 ? Precision::fp16 : Precision::fp32;
}

// True if a floating input has another precision than `to`.
constexpr bool must_cast(Kind to, const Inputs& inputs) {
  return to != Kind::other && (inputs.present.kinds & floating & ~bit(to)) != 0;
}

// Rule 9 alone: torch accepts mixed precisions, but no number beyond the range of the first input. Python numbers and
// tensors without dimensions are brought into that range, and no other tensor is cast. If the first input has no
// dimensions itself, torch promotes the others with it.
constexpr bool casts_only_numbers(const Rule& rule) { return rule.action == Action::scalars; }

// ---- the draft: the decision that the rule makes from the inputs alone ----------------------------------------------

inline Plan leave_as_written(Reason reason, Precision precision = Precision::unchanged, Where where = Where::here()) {
  trace("nothing is to be cast", describe(reason), where);
  return {.decision = {precision, reason}};
}

// Rule 2: returns the widest of several precisions. As in torch's promotion, a tensor without dimensions does not widen
// one with dimensions: it is cast to the precision of those. If the operation itself promotes it, the tensor stays
// unchanged, with all its digits, and is removed from `inputs`.
template <typename Facts>
Kind widest_of(const Rule& rule, Inputs& inputs, const Facts& facts, Plan& plan) {
  if (inputs.present.holds_one_precision()) return inputs.present.first;
  const bool counts_all = rule.gives_dimensions;
  const std::optional<Present> rest = counts_all ? std::nullopt : facts.inputs_with_dimensions();
  if (!rest) return inputs.present.widest();
  plan.leaves_numbers = rule.promotes && rest->holds_one_precision();
  if (plan.leaves_numbers) inputs.present.leave_only(*rest);
  return rest->widest();
}

template <typename Facts>
Plan draft(const Rule& rule, Inputs& inputs, const Facts& facts) {
  if (rule.action == Action::left) return leave_as_written(Reason::level, inputs.given);
  if (inputs.explicit_out) return leave_as_written(Reason::explicit_out, inputs.given);
  if (inputs.explicit_dtype) return leave_as_written(Reason::explicit_dtype, inputs.given);
  if ((inputs.present.kinds & floating) == 0 || (inputs.present.kinds & bit(Kind::wide)) != 0) {
    return leave_as_written(Reason::ineligible);
  }
  Plan plan;
  switch (rule.action) {
    case Action::precision:
      plan.to = rule.to;
      break;
    case Action::widest:
      plan.to = widest_of(rule, inputs, facts, plan);
      break;
    case Action::in_place:
      if (!is_floating(inputs.target)) return leave_as_written(Reason::ineligible);
      plan.to = inputs.target;
      break;
    case Action::first_input:
    case Action::scalars:
      plan.to = inputs.present.first;
      break;
    case Action::operands:
      plan.to = inputs.present.one_lower();
      if (facts.may_add_up() && !inputs.present.holds_one_precision()) plan.to = Kind::other;
      if (plan.to == Kind::other) return leave_as_written(rule.reason);
      break;
    case Action::left:
    case Action::none:
    case Action::refused:
      return leave_as_written(rule.reason);
  }
  plan.decision = {precision_of(plan.to), rule.reason, rule.line};
  trace("the rule wants", name(plan.decision.precision));
  return plan;
}

// ---- the table: conditions that overrule the draft ------------------------------------------------------------------

// True if no input of this call may be cast, whatever the lists contain. The table has the same conditions.
template <typename Facts>
bool is_left_alone(const Facts& facts) {
  return facts.is_decided_elsewhere() || facts.place() || facts.is_for_another_device();
}

// True if the table may overrule a draft that casts no input.
template <typename Facts>
bool must_look_closer(const Rule& rule, const Plan& plan, const Facts& facts) {
  if (is_lower(plan.to) && (facts.may_add_up() || (rule.is_product && facts.holds_sparse_tensor()))) return true;
  return rule.saturates && is_lower(plan.to) && facts.has_number_beyond(plan.to);
}

// Applies the table from top to bottom. The first row that holds decides, and the facts of later rows are not computed.
template <typename Facts>
[[gnu::noinline]] Plan confirm(const Rule& rule, Inputs& inputs, const Facts& facts, Plan plan) {
  const auto by = [&plan](Way way, Where where = Where::here()) {
    trace(name(way), describe(plan.decision.reason), where);
    plan.way = way;
    return plan;
  };
  const auto leave = [&](Reason reason, Where where = Where::here()) {
    plan.decision = {Precision::unchanged, reason};
    return by(Way::leave, where);
  };

  // The surroundings of the call.
  if (facts.is_decided_elsewhere()) return by(Way::leave_to_outer);
  if (const std::optional<Reason> place = facts.place()) return leave(*place);
  const bool lowers_by_list = is_by_list(plan.decision.reason) && is_lower(plan.to);
  if (lowers_by_list && facts.caller_is_exact()) {
    plan.decision = {Precision::unchanged, Reason::library};
    return by(Way::unlisted_rule);
  }
  if (lowers_by_list && rule.is_elementwise && facts.is_of_float32_alone_within_modules()) {
    plan.decision = {Precision::fp32, Reason::arithmetic};
    return by(Way::unlisted_rule);
  }
  if (facts.is_for_another_device()) return leave(Reason::other_device);

  // The inputs and the operation.
  if (rule.views_one && facts.holds_one_tensor()) return leave(Reason::view);
  if (casts_only_numbers(rule) && facts.first_input_is_a_number()) return by(Way::leave);
  const Answer makes_product = facts.makes_product();
  if (makes_product == Answer::failed) return by(Way::failed);
  if (makes_product == Answer::no) {
    plan.to = widest_of(rule, inputs, facts, plan);
    plan.decision = {precision_of(plan.to), Reason::no_product, rule.line};
    if (!must_cast(plan.to, inputs)) return by(Way::leave);
  }
  if (is_lower(plan.to)) {
    const Answer is_fused = facts.is_fused();
    if (is_fused == Answer::failed) return by(Way::failed);
    plan.is_fused = is_fused == Answer::yes;
  }
  plan.is_inside = rule.products_inside && is_lower(plan.to) && !plan.is_fused;
  if (plan.is_inside && !facts.may_lower_products(plan.to)) return by(Way::unlisted_rule);
  if (plan.to == Kind::bf16) {
    const Answer wrong_in_bf16 = facts.wrong_in_bf16();
    if (wrong_in_bf16 == Answer::failed) return by(Way::failed);
    plan.in_float32 = wrong_in_bf16 == Answer::yes;
  }
  plan.computed_in = plan.to;
  if (is_lower(plan.to) && facts.may_add_up()) {
    const Answer adds_up = facts.adds_up();
    if (adds_up == Answer::failed) return by(Way::failed);
    if (adds_up == Answer::yes) {
      plan.computed_in = Kind::f32;
      plan.decision = {Precision::fp32, rule.action == Action::operands ? Reason::slow : Reason::sums};
    } else if (!must_cast(plan.to, inputs)) {
      return by(Way::leave);
    }
  }

  // Limits of torch. Kernels for sparse tensors add up in the lower precision, if they support it.
  if (rule.is_product && is_lower(plan.to) && facts.holds_sparse_tensor()) return by(Way::without_lowering);
  if (is_lower(plan.to) && facts.mixes_in_a_transform()) return by(Way::without_lowering);
  return by(Way::with_casts);
}

template <typename Facts>
Plan decide(const Rule& rule, Inputs inputs, const Facts& facts) {
  Plan plan = draft(rule, inputs, facts);
  if (must_cast(plan.to, inputs) || must_look_closer(rule, plan, facts)) return confirm(rule, inputs, facts, plan);
  trace("no input is to be cast", describe(plan.decision.reason));
  const bool is_refused = rule.action == Action::refused && plan.decision.reason == rule.reason;
  if (is_refused && !facts.is_for_another_device()) plan.way = Way::refuse;
  return plan;
}

// Drafts the plan of a call in a region of torch.autocast(enabled=False). Nothing is lowered there, but the inputs may
// have been lowered outside. Code that protects itself with such a region expects float32, so if torch refuses mixed
// precisions, the inputs are cast to float32 (rule 10).
template <typename Facts>
Plan draft_protected(const Rule& rule, Inputs& inputs, const Facts& facts) {
  Plan plan = draft(rule, inputs, facts);
  const bool holds_lower = (inputs.present.kinds & lower_kinds) != 0;
  plan.to = holds_lower && plan.to != Kind::other ? Kind::f32 : Kind::other;
  plan.decision.precision = Precision::fp32;
  return plan;
}

// Decides a product in such a region before it is called, since a tracer may accept mixed precisions that the kernels
// of the traced code refuse. Other operations are first called as they are written.
template <typename Facts>
Plan decide_protected(const Rule& rule, Inputs inputs, const Facts& facts) {
  const Plan plan = draft_protected(rule, inputs, facts);
  if (plan.to == Kind::other || (inputs.present.kinds & bit(Kind::f32)) == 0) return plan;
  return confirm(rule, inputs, facts, plan);
}

}  // namespace habana_mp::rules

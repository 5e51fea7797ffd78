// Decides what is tried after a failed try. The tries form a ladder, which a call descends until one succeeds or none
// is left.
//
// 1. With the core's casts.
// 2. With every input in float32, since the operation may have no kernel for the lower precision (rule 8).
// 3. As it is written.
// 4. In the precision of the state that the call updates.
//
// If all fail, the caller gets the first error that is no refusal of a dtype, and that of the call as it is written if
// there is none: a refusal may come from a cast, and never hides what is wrong with the call.
#pragma once

#include <array>
#include <cstddef>

#include "rules/rule.hpp"

namespace habana_mp::rules {

enum class Try : std::uint8_t {
  with_casts,
  in_float32,
  as_written,
  in_precision_of_state,
  give_up,
};

// Returns the words of the trace.
constexpr const char* name(Try step) {
  constexpr std::array names{"with casts", "in float32", "as written", "in the precision of state", "not"};
  return names[static_cast<std::size_t>(step)];
}

// A failed try.
struct Failure {
  Try step = Try::with_casts;
  bool was_as_written = false;  // true if nothing was changed, in this try or the first one
  bool casts_were_made = true;  // false if a cast failed, and not the call
  bool changed_anything = true;
};

// True if the call may be made again. A Python function is called only once: a user-defined one may have had any effect
// before it failed, and the operations inside a torch function have been tried again one by one.
template <typename Facts>
bool may_repeat(const Rule& rule, const Facts& facts) {
  return !rule.is_not_repeated && !facts.is_python_function();
}

// True if another try may follow. The facts examine the exception that is set: `torch_raised` is true if torch itself
// raised it, `cast_refused` if a cast was refused. Both are false if anything else forbids another call.
template <typename Facts>
bool may_try_again(const Rule& rule, const Failure& failure, const Facts& facts) {
  if (!failure.casts_were_made) return facts.cast_refused();
  return may_repeat(rule, facts) && facts.torch_raised();
}

template <typename Facts>
Try next_try(const Rule& rule, const Failure& failure, const Facts& facts) {
  // An in-place target keeps its precision, so the inputs cannot all be cast to float32.
  const bool may_widen = rule.action != Action::in_place;
  switch (failure.step) {
    case Try::with_casts:
      if (!may_try_again(rule, failure, facts)) return Try::give_up;
      if (may_widen) return Try::in_float32;
      return failure.was_as_written ? Try::give_up : Try::as_written;
    case Try::in_float32:
      if (failure.casts_were_made && !failure.changed_anything) return Try::give_up;
      if (!may_try_again(rule, failure, facts)) return Try::give_up;
      return failure.was_as_written ? Try::give_up : Try::as_written;
    case Try::as_written:
      return facts.updates_lower_state() && facts.torch_raised() ? Try::in_precision_of_state : Try::give_up;
    default:
      return Try::give_up;
  }
}

// True if the error of a failed try is raised in place of the one before, if no later try succeeds.
constexpr bool tells_more(const Failure& failure, bool is_refusal, bool former_is_refusal) {
  const bool is_as_written = failure.step == Try::as_written || !failure.changed_anything;
  return former_is_refusal && (!is_refusal || is_as_written);
}

// Returns the next try after the failure of a call as written whose inputs needed no cast. An input that is already
// lower may lack a kernel too.
template <typename Facts>
Try next_try_of_plain(const Rule& rule, bool holds_lower, const Facts& facts) {
  const bool may_cast = rule.action != Action::in_place && rule.action != Action::left;
  const bool may_widen = holds_lower && may_cast && may_repeat(rule, facts);
  return may_widen && facts.torch_raised() && !facts.is_left_alone() ? Try::in_float32 : Try::give_up;
}

}  // namespace habana_mp::rules

// What is tried after a try that failed: a ladder, down which a call goes step by step until one holds or none is left.
//
// With our casts; with every input in float32, for the operation may have no kernel for the lower precision (rule 8);
// as it is written, and whatever comes of that is the caller's; in the precision of what the call updates.
#pragma once

#include "rules/rule.hpp"

namespace habana_mp::rules {

enum class Try : std::uint8_t {
  with_casts,
  in_float32,
  as_written,
  in_precision_of_state,
  give_up,         // the last error is the caller's
  give_up_former,  // the error of the first try is
};

// The try that failed.
struct Failure {
  Try step = Try::with_casts;
  bool was_as_written = false;  // with nothing changed, by this try or the first one
  bool casts_were_made = true;  // did the call fail, and not a cast of it?
  bool changed_anything = true;
};

// A Python function is not called again: a user's own may have done anything before it failed, and the operations
// inside of one of torch's have been tried again one by one.
template <typename Facts>
bool may_repeat(const Rule& rule, const Facts& facts) {
  return rule.may_repeat && !facts.is_python_function();
}

// Of the exception that is set the facts tell whether torch itself raised it (`torch_raised`), or a cast refused
// (`cast_refused`), and whether nothing else stands against one more call.
template <typename Facts>
bool may_try_again(const Rule& rule, const Failure& failure, const Facts& facts) {
  if (!failure.casts_were_made) return facts.cast_refused();
  return may_repeat(rule, facts) && facts.torch_raised();
}

template <typename Facts>
Try next_try(const Rule& rule, const Failure& failure, const Facts& facts) {
  // An in-place target stays what it is, so the inputs cannot all go to float32.
  const bool may_widen = rule.action != Action::in_place;
  switch (failure.step) {
    case Try::with_casts:
      if (!may_try_again(rule, failure, facts)) return Try::give_up;
      if (may_widen) return Try::in_float32;
      return failure.was_as_written ? Try::give_up : Try::as_written;
    case Try::in_float32:
      if (failure.casts_were_made && !failure.changed_anything) return Try::give_up;
      if (!may_try_again(rule, failure, facts)) return Try::give_up;
      return failure.was_as_written ? Try::give_up_former : Try::as_written;
    case Try::as_written:
      return facts.updates_lower_state() && facts.torch_raised() ? Try::in_precision_of_state : Try::give_up;
    case Try::in_precision_of_state:
      return facts.torch_raised() ? Try::give_up_former : Try::give_up;
    default:
      return Try::give_up;
  }
}

// What is tried after a call as it is written, of which nothing was to be cast. What is lower already may have no
// kernel either.
template <typename Facts>
Try next_try_of_plain(const Rule& rule, bool holds_lower, const Facts& facts) {
  const bool may_widen = holds_lower && rule.action != Action::in_place && may_repeat(rule, facts);
  return may_widen && facts.torch_raised() && !facts.is_left_alone() ? Try::in_float32 : Try::give_up;
}

}  // namespace habana_mp::rules

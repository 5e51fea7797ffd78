// Selects what decides a call: the lists that apply where it is made, the rule for suspended lists, or nothing.
#pragma once

#include <array>
#include <cstddef>

#include "rules/rule.hpp"

namespace habana_mp::rules {

enum class RuleSource : std::uint8_t {
  disabled,          // casts are disabled: the call is made as it is written
  protected_region,  // a region of torch.autocast(enabled=False), where inputs lowered outside may meet float32
  lists,
  lowered_inputs,  // the lists apply elsewhere, but an input is lower already
  unlisted,        // rules 2 to 4 alone
  as_written,      // nothing, since a cast cannot pass on the gradient
  nothing,         // nothing: no list and no rule names the operation
};

// Returns the words of the trace.
constexpr const char* name(RuleSource source) {
  constexpr std::array names{"nowhere, since casts are disabled",
                             "a region of torch.autocast(enabled=False)",
                             "the lists",
                             "the lists, for inputs that are lower",
                             "rules 2 to 4 alone",
                             "nowhere, since the gradient is sparse",
                             "nowhere"};
  return names[static_cast<std::size_t>(source)];
}

// The parts of a thread's state on which the selection depends.
struct Situation {
  bool casts_are_disabled = false;
  bool disabled_by_region = false;   // by torch.autocast(enabled=False), not by disable_casts
  bool has_lists = false;            // of convert or of a region
  bool lists_are_suspended = false;  // suspended in code that decides for itself (hmp.op_wrap, a composite) ...
  bool until_tracking = false;       // ... until autograd tracks operations there: these repeat a forward
};

template <typename Facts>
RuleSource choose_rule_source(const Situation& here, const Facts& facts) {
  if (here.casts_are_disabled) {
    return here.disabled_by_region && here.has_lists ? RuleSource::protected_region : RuleSource::disabled;
  }
  // A user-defined function has its own rule, which applies wherever the function is called.
  const bool by_lists =
      !here.lists_are_suspended || facts.is_user_function() || (here.until_tracking && facts.records_gradients());
  if (!by_lists) return facts.has_unlisted_rule() ? RuleSource::unlisted : RuleSource::nothing;
  RuleSource source = RuleSource::lists;
  if (!facts.has_listed_rule()) {
    if (!facts.has_rule_for_lowered() || !facts.holds_lower_tensor()) return RuleSource::nothing;
    source = RuleSource::lowered_inputs;
  }
  // A cast cannot pass on a sparse gradient.
  if (!facts.has_sparse_gradient()) return source;
  return facts.has_unlisted_rule() ? RuleSource::unlisted : RuleSource::as_written;
}

}  // namespace habana_mp::rules

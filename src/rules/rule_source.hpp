// Selects what decides a call: the lists that apply where it is made, the rule for suspended lists, or nothing.
#pragma once

#include <array>
#include <cstddef>

#include "rules/rule.hpp"

namespace habana_mp::rules {

enum class RuleSource : std::uint8_t {
  none,              // the call is made as it is written
  protected_region,  // a region of torch.autocast(enabled=False), where inputs lowered outside may meet float32
  lists,
  unlisted,  // rules 2 to 4 alone
};

// Returns the words of the trace.
constexpr const char* name(RuleSource source) {
  constexpr std::array names{"nowhere", "a region of torch.autocast(enabled=False)", "the lists", "rules 2 to 4 alone"};
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
    return here.disabled_by_region && here.has_lists ? RuleSource::protected_region : RuleSource::none;
  }
  // A user-defined function has its own rule, which applies wherever the function is called.
  if (!here.lists_are_suspended || facts.is_users_function()) return RuleSource::lists;
  return here.until_tracking && facts.records_gradients() ? RuleSource::lists : RuleSource::unlisted;
}

}  // namespace habana_mp::rules

// Selects what decides a call: the lists that apply where it is made, the rule for suspended lists, or nothing.
#pragma once

#include "rules/rule.hpp"

namespace habana_mp::rules {

enum class Speaker : std::uint8_t {
  nobody,      // the call is made as it is written
  protection,  // a region of torch.autocast(enabled=False), where inputs lowered outside may meet float32
  lists,
  silence,  // rules 2 to 4 alone
};

// The parts of a thread's state on which the selection depends.
struct Situation {
  bool casts_are_disabled = false;
  bool disabled_by_region = false;  // by torch.autocast(enabled=False), not by disable_casts
  bool has_lists = false;           // of convert or of a region
  bool is_silent = false;           // suspended in code that decides for itself (hmp.op_wrap, a composite) ...
  bool until_recording = false;     // ... until autograd tracks operations there: these repeat a forward
};

template <typename Facts>
Speaker who_speaks(const Situation& here, const Facts& facts) {
  if (here.casts_are_disabled) {
    return here.disabled_by_region && here.has_lists ? Speaker::protection : Speaker::nobody;
  }
  // A user-defined function has its own rule, which applies wherever the function is called.
  if (!here.is_silent || facts.is_users_function()) return Speaker::lists;
  return here.until_recording && facts.records_gradients() ? Speaker::lists : Speaker::silence;
}

}  // namespace habana_mp::rules

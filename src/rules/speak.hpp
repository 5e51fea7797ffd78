// Who speaks about a call: the lists of where it is made, the rule for where these are silent, or nobody.
#pragma once

#include "rules/rule.hpp"

namespace habana_mp::rules {

enum class Speaker : std::uint8_t {
  nobody,      // the call is made as it is written
  protection,  // a region of torch.autocast(enabled=False), where what was lowered outside meets float32
  lists,
  silence,  // rules 2 to 4 alone
};

// Everything in a thread that bears on it.
struct Situation {
  bool casts_are_disabled = false;
  bool disabled_by_region = false;  // by torch.autocast(enabled=False), not by disable_casts
  bool has_lists = false;           // convert's or a region's
  bool is_silent = false;           // within what decides for itself (hmp.op_wrap, a composite) ...
  bool until_recording = false;     // ... but what records there is a forward that is made again
};

template <typename Facts>
Speaker who_speaks(const Situation& here, const Facts& facts) {
  if (here.casts_are_disabled) {
    return here.disabled_by_region && here.has_lists ? Speaker::protection : Speaker::nobody;
  }
  // A user's own function has a rule of its own, wherever it is called.
  if (!here.is_silent || facts.is_users_function()) return Speaker::lists;
  return here.until_recording && facts.records_gradients() ? Speaker::lists : Speaker::silence;
}

}  // namespace habana_mp::rules

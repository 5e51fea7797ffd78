// The cast log: one line for each call of a handled operation, written with spdlog.
#pragma once

#include <string>
#include <string_view>

#include "listeners.hpp"
#include "rules/decision.hpp"

namespace habana_mp::log {

// True if the log has a destination.
inline bool is_active() noexcept { return listens(Listener::log); }

// True if each line gives the reason and the origin of the call.
bool explains() noexcept;

// The origin of a call.
struct Origin {
  std::string file;
  int line = 0;
};

// Logs one call of a handled operation. `representation` is the repr of torch's own object, `operation` its name in the
// lists, `casts` the number of tensors that were cast. With an `origin` the line gives the reason and the origin. The
// caller holds the GIL. A sink that fails never fails the call that it reports.
void operation(std::string_view representation, std::string_view operation, rules::Decision decision, unsigned casts,
               const Origin* origin) noexcept;

// Logs other events: casts are left or entered again, a weight is made from a lowered tensor. `rest` follows `text`
// without a gap.
void event(std::string_view text, std::string_view rest = {}) noexcept;

// Returns the text with whatever controls a terminal or ends a line (\n, \x1b, \u2028) escaped, as in the log.
std::string printable(std::string_view text);

}  // namespace habana_mp::log

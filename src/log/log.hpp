// The cast log: one line for each call of a covered operation, through spdlog.
#pragma once

#include <string>
#include <string_view>

#include "listeners.hpp"
#include "rules/decision.hpp"

namespace habana_mp::log {

// Is anybody listening?
inline bool is_active() noexcept { return listens(Listener::log); }

// Shall each line say why, and where the call comes from?
bool explains() noexcept;

// Where a call comes from.
struct Origin {
  std::string file;
  int line = 0;
};

// One call of a covered operation. `representation` is the repr of torch's own object, `operation` its list name,
// `casts` how many tensors were cast. With an `origin` the line says why, and where. The caller holds the GIL. A sink
// that fails never fails the call it reports.
void operation(std::string_view representation, std::string_view operation, rules::Decision decision, unsigned casts,
               const Origin* origin) noexcept;

// Something else worth a line: casts left or entered again, a weight made from a lowered tensor.
// `rest` follows it without a gap.
void event(std::string_view text, std::string_view rest = {}) noexcept;

}  // namespace habana_mp::log

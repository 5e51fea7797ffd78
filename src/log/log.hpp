// The cast log: one line for each call of a covered operation, through spdlog.
#pragma once

#include <atomic>
#include <string_view>

#include "rules/decision.hpp"

namespace habana_mp::log {

namespace detail {
extern std::atomic<bool> active;
}

// Is anybody listening? One relaxed load: the hot path asks this and nothing else.
inline bool is_active() noexcept { return detail::active.load(std::memory_order_relaxed); }

// One call of a covered operation. `representation` is the repr of torch's own object, `operation` its list name,
// `casts` how many tensors were cast. The caller holds the GIL. A sink that fails never fails the call it reports.
void operation(std::string_view representation, std::string_view operation, rules::Decision decision,
               unsigned casts) noexcept;

// Something else worth a line: casts left or entered again, a weight made from a lowered tensor.
void event(std::string_view text) noexcept;

}  // namespace habana_mp::log

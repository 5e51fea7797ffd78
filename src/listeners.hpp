// The listeners that are notified of each call that a rule decides, beside the counters.
#pragma once

#include <atomic>
#include <cstdint>

namespace habana_mp {

// `compiler`: a thread traces or runs code that torch.compile reads, so a call may not count.
enum class Listener : std::uint8_t { log = 1, watch = 2, observer = 4, compiler = 8 };

namespace detail {
inline std::atomic<std::uint8_t> listeners{0};
}

// One relaxed load, the only check on the hot path.
inline bool anybody_listens() noexcept { return detail::listeners.load(std::memory_order_relaxed) != 0; }

inline bool listens(Listener one) noexcept {
  return (detail::listeners.load(std::memory_order_relaxed) & static_cast<std::uint8_t>(one)) != 0;
}

inline void set_listening(Listener one, bool listens) noexcept {
  const auto bit = static_cast<std::uint8_t>(one);
  if (listens) {
    detail::listeners.fetch_or(bit, std::memory_order_relaxed);
  } else {
    detail::listeners.fetch_and(static_cast<std::uint8_t>(~bit), std::memory_order_relaxed);
  }
}

}  // namespace habana_mp

#include "watch/events.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "forks.hpp"
#include "owned.hpp"

namespace habana_mp::watch {

namespace {

NeverDestroyed<std::vector<Event>> ring;
std::size_t oldest = 0;  // index in a ring that is full

template <typename Clock>
std::int64_t now() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

}  // namespace

void prepare_events() { ring->reserve(most_events); }

void note_event(const Event& event) noexcept {
  if (ring->size() < most_events) {
    ring->push_back(event);
    return;
  }
  (*ring)[oldest] = event;
  oldest = (oldest + 1) % most_events;
}

std::vector<Event> events() {
  std::vector<Event> all = *ring;
  std::rotate(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(oldest), all.end());
  return all;
}

void forget_events() noexcept {
  ring->clear();
  oldest = 0;
}

std::uint64_t nanoseconds() noexcept { return static_cast<std::uint64_t>(now<std::chrono::steady_clock>()); }

std::int64_t nanoseconds_to_calendar() noexcept {
  return now<std::chrono::system_clock>() - now<std::chrono::steady_clock>();
}

// In a forked child the thread has another number than before the fork.
static thread_local std::uint64_t number_here = 0;
[[maybe_unused]] static const bool is_mended = forks::mend_in_child([] { number_here = 0; });

std::uint64_t thread_number() noexcept {
  if (number_here == 0) number_here = static_cast<std::uint64_t>(syscall(SYS_gettid));
  return number_here;
}

}  // namespace habana_mp::watch

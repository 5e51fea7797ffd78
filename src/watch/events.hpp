// The last calls in order of time.
#pragma once

#include <cstdint>
#include <vector>

namespace habana_mp::watch {

// The call of a record, by its number, or of a module; the other number is -1.
struct Event {
  std::int64_t record = -1;
  std::int64_t module = -1;
  std::uint64_t begin = 0;  // nanoseconds
  std::uint64_t end = 0;
  std::uint64_t thread = 0;
};

// The number of calls that are kept.
inline constexpr std::size_t most_events = 200'000;

void note_event(const Event& event);
// Returns the calls in the order in which they ended.
std::vector<Event> events();
void forget_events() noexcept;

std::uint64_t nanoseconds() noexcept;
// Returns the difference between nanoseconds since 1970 and `nanoseconds()`.
std::int64_t nanoseconds_to_calendar() noexcept;
// Returns the operating system's number of this thread.
std::uint64_t thread_number() noexcept;

}  // namespace habana_mp::watch

// The last calls, with their times.
#pragma once

#include <cstdint>
#include <vector>

namespace habana_mp::watch {

// A call of an operation or of a module. `record` is the number of the operation's record, `module` that of the module.
// The other one is -1.
struct Event {
  std::int64_t record = -1;
  std::int64_t module = -1;
  std::uint64_t begin = 0;  // in `nanoseconds()`, as `end`
  std::uint64_t end = 0;
  std::uint64_t thread = 0;  // its `thread_number()`
};

// The number of calls that are stored. A further call replaces the oldest one.
inline constexpr std::size_t most_events = 200'000;

// Allocates the room for all calls, which takes memory only as it is used. Call it before `note_event`.
void prepare_events();
// Stores a call that has ended.
void note_event(const Event& event) noexcept;
// Returns the calls in the order in which they ended.
std::vector<Event> events();
void forget_events() noexcept;

// Returns the time of std::chrono::steady_clock.
std::uint64_t nanoseconds() noexcept;
// Returns the difference between nanoseconds since 1970 and `nanoseconds()`.
std::int64_t nanoseconds_to_calendar() noexcept;
// Returns the operating system's number of this thread.
std::uint64_t thread_number() noexcept;

}  // namespace habana_mp::watch

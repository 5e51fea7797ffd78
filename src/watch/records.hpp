// Records of calls: one for each operation, place, module, precision, reason and phase.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "rules/decision.hpp"
#include "rules/kind.hpp"
#include "watch/modules.hpp"

namespace habana_mp::watch {

enum class Phase : std::uint8_t { forward, backward, traced };
constexpr const char* name(Phase phase) {
  return phase == Phase::backward ? "backward" : phase == Phase::traced ? "traced" : "forward";
}

struct Key {
  const std::string* operation = nullptr;  // lives as long as the records
  const Place* place = nullptr;
  const ModulePath* module = nullptr;
  const std::string* inside = nullptr;  // the name of a function that runs without casts; lives as long, too
  rules::Decision decision{};
  Phase phase = Phase::forward;
  bool operator==(const Key&) const = default;
  [[nodiscard]] std::size_t hash() const noexcept;
};

// Counts the casts of calls.
struct Amounts {
  std::uint64_t casts = 0;
  std::uint64_t hits = 0;
  std::uint64_t bytes = 0;
  std::uint64_t needed = 0;  // of the casts, first ones of weights, and those of weights too small to be cached
};

// The kinds of operations for which the input values matter, beside their precision.
enum class Sensitivity : std::uint8_t {
  none,
  angle,       // such as a sine's: rounding a large one changes the result completely
  count,       // such as a comparison's or an index's: whole numbers are exact only to 256 (bf16), 2048 (fp16)
  statistics,  // updates running statistics: its tensors from `statistics_from` on
  sum,         // a sum or a difference: what is left of large values is their rounding
  decay,       // may multiply an average by a number next to 1
};
inline constexpr Py_ssize_t statistics_from = 3;
inline constexpr Py_ssize_t statistics_count = 2;

// Observations about the input values of calls, and about the use of their results: type, name, name in a report.
#define HABANA_MP_NOTICED(ROW)                                                                                         \
  ROW(double, largest_count, "largest count")      /* among whole numbers that the lower precision cannot represent */ \
  ROW(double, largest_angle, "largest angle")      /* among angles in lower precision */                               \
  ROW(std::uint64_t, with_float64, "with float64") /* calls with a float64 tensor */                                   \
  ROW(std::uint64_t, in_lower_statistics, "in lower statistics") /* updates of statistics in lower precision */        \
  ROW(std::uint64_t, losses, "losses")                           /* results from which a backward began */             \
  ROW(std::uint64_t, carried, "carried")                 /* results that were stored over a tensor of the same size */ \
  ROW(std::uint64_t, cancelled, "cancelled")             /* sums in which little is left of a lower term */            \
  ROW(std::uint64_t, mostly_rounding, "mostly rounding") /* of these, sums of which most values may be rounding */     \
  ROW(std::uint64_t, subtracted, "subtracted")     /* values of sums and differences of its results outside modules */ \
  ROW(std::uint64_t, nearly_equal, "nearly equal") /* of these, differences of nearly equal values */                  \
  ROW(std::uint64_t, lost_ridges, "lost ridges")   /* sums of a lower matrix and a diagonal below its rounding */      \
  ROW(std::uint64_t, decays, "decays")             /* multiplications by a number next to 1 */

struct Noticed {
#define ROW(type, name, words) type name = 0;
  HABANA_MP_NOTICED(ROW)
#undef ROW
};

struct Record {
  Key key;
  Sensitivity sensitivity = Sensitivity::none;
  std::size_t number = 0;  // in order of first call
  std::uint64_t calls = 0;
  Amounts amounts;
  std::uint64_t nanoseconds = 0;           // of the calls alone, without handled calls inside them
  std::uint64_t cast_nanoseconds = 0;      // of their casts
  std::array<std::uint64_t, 9> refused{};  // weights whose cast was not cached, by weights::Refusal
  Noticed noticed;
  // A record whose results were among the inputs of this one.
  struct From {
    const Record* record;
    std::uint64_t calls;
    std::uint64_t casts;
  };
  std::vector<From> from;
  // The precision of its inputs, or `other`.
  [[nodiscard]] Kind wanted() const noexcept {
    constexpr std::array kinds{Kind::bf16, Kind::f16, Kind::f32, Kind::other};  // of rules::precisions
    return kinds[static_cast<std::size_t>(key.decision.precision)];
  }
};

// All other operations are not sensitive.
void set_sensitive(const std::string& operation, Sensitivity sensitivity);
Sensitivity sensitivity_of(const std::string& operation);
// Returns an equal string that lives as long as the records.
const std::string* operation_named(const std::string& operation);
Record& record_of(const Key& key);
const std::deque<Record>& all_records() noexcept;
// Drops all records and increments the generation: a call under way must not write to a record that is gone.
void forget_records() noexcept;
// Frees the places if there are many and no record uses one: the log finds places without recording calls.
void bound_places() noexcept;
std::uint64_t record_generation() noexcept;

// Stores the call that made the data in this tensor's memory. `maker_of` returns its record, or null if it is unknown.
void remember_result(PyObject* tensor, const Record& made_by);
Record* maker_of(PyObject* tensor) noexcept;
// Stores for a tensor the call that made another one, which has the same values.
void pass_on_maker(PyObject* from, PyObject* to);

// A call of an operation or of a module. `record` is the number of the operation's record, `module` that of the module.
// The other one is -1.
struct Event {
  std::int64_t record = -1;
  std::int64_t module = -1;
  std::uint64_t begin = 0;  // in `nanoseconds()`, as `end`
  std::uint64_t end = 0;
  std::uint64_t thread = 0;  // the operating system's number
};
// Allocates the room for the last calls, which takes memory only as it is used. Call it before `note_event`.
void prepare_events();
// Stores a call that has ended in this thread, with the number of the thread. It may replace the oldest one.
void note_event(Event event) noexcept;
// Returns the calls in the order in which they ended.
std::vector<Event> events();
void forget_events() noexcept;

template <typename Clock = std::chrono::steady_clock>
std::uint64_t nanoseconds() noexcept {
  const std::chrono::nanoseconds now = Clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(now.count());
}

}  // namespace habana_mp::watch

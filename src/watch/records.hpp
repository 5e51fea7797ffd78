// What was seen of calls: one record for each operation, place, module, precision and reason.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "rules/decision.hpp"
#include "watch/modules.hpp"

namespace habana_mp::watch {

enum class Phase : std::uint8_t { forward, backward, traced };
const char* name(Phase phase) noexcept;

struct Key {
  const std::string* operation = nullptr;  // which lives as long as the records do
  const Place* place = nullptr;
  const Module* module = nullptr;
  rules::Decision decision{};
  Phase phase = Phase::forward;
  bool operator==(const Key&) const = default;
  [[nodiscard]] std::size_t hash() const noexcept;
};

// What was cast for a call.
struct Amounts {
  std::uint64_t casts = 0;
  std::uint64_t kept = 0;
  std::uint64_t bytes = 0;
  std::uint64_t small = 0;  // of the casts, those of weights that are too small to be kept
};

// Which values of its inputs matter for an operation, beside their precision.
enum class Sensitivity : std::uint8_t {
  none,
  angle,       // as those of a sine: rounding a large one changes the result wholly
  count,       // as those of a comparison or of an index: a lower precision holds whole numbers to some hundred only
  statistics,  // it updates running statistics, which are its tensors at `statistics_from` and behind it
};
inline constexpr Py_ssize_t statistics_from = 3;
inline constexpr Py_ssize_t statistics_count = 2;

// What was seen of the values that calls were given, and of what became of their results.
struct Noticed {
  double largest_count = 0;               // among whole numbers that the lower precision does not hold
  double largest_angle = 0;               // among angles in lower precision
  std::uint64_t with_float64 = 0;         // calls with such a tensor
  std::uint64_t in_lower_statistics = 0;  // calls that update statistics in lower precision
  std::uint64_t losses = 0;               // results in lower precision that a backward began from
  std::uint64_t carried = 0;  // results in lower precision that replaced a module's attribute of the same size
};

struct Record {
  Key key;
  Sensitivity sensitivity = Sensitivity::none;
  std::size_t number = 0;  // in order of first call
  std::uint64_t calls = 0;
  Amounts amounts;
  std::uint64_t nanoseconds = 0;           // its own, without covered calls inside
  std::uint64_t cast_nanoseconds = 0;      // of them
  std::array<std::uint64_t, 8> refused{};  // weights of which no cast was kept, by a number of weights::Refusal
  Noticed noticed;
  // Whose results were among its inputs.
  struct From {
    const Record* record;
    std::uint64_t calls;
    std::uint64_t casts;
  };
  std::vector<From> from;
};

// The operations that are sensitive; those that are not named are not.
void set_sensitive(std::unordered_map<std::string, Sensitivity> operations);
// One that lives as long as the records do.
const std::string* operation_named(const std::string& operation);
Record& record_of(const Key& key);
const std::deque<Record>& all_records() noexcept;
// Counts from zero. How often that was done: a call that is under way must not write into a record that is gone.
void forget_records() noexcept;
// Frees the places if there are many and no record has one: the log finds places without recording calls.
void bound_places() noexcept;
std::uint64_t record_generation() noexcept;

// Which call made what lies in this tensor's memory?
void remember_result(PyObject* tensor, const Record& made_by);
Record* maker_of(PyObject* tensor) noexcept;

}  // namespace habana_mp::watch

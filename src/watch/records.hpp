// What was seen of calls: one record for each operation, place, module, precision and reason.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string>
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

struct Record {
  Key key;
  std::size_t number = 0;  // in order of first call
  std::uint64_t calls = 0;
  Amounts amounts;
  std::uint64_t nanoseconds = 0;           // its own, without covered calls inside
  std::uint64_t cast_nanoseconds = 0;      // of them
  std::array<std::uint64_t, 8> refused{};  // weights of which no cast was kept, by a number of weights::Refusal
  // Whose results were among its inputs.
  struct From {
    const Record* record;
    std::uint64_t calls;
    std::uint64_t casts;
  };
  std::vector<From> from;
};

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
const Record* maker_of(PyObject* tensor) noexcept;

}  // namespace habana_mp::watch

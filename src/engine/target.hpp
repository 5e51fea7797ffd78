// A target: a torch function or method that the engine handles, with its rules and its counters.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/rule.hpp"
#include "host/callables.hpp"

namespace habana_mp::engine {

struct Count {
  std::uint64_t calls = 0;
  std::uint64_t casts = 0;
  std::uint64_t bytes = 0;
  std::uint64_t needed = 0;  // of the casts, first ones of weights, and those of weights too small to be cached

  Count& operator+=(const Count& other) noexcept {
    calls += other.calls;
    casts += other.casts;
    bytes += other.bytes;
    needed += other.needed;
    return *this;
  }
};

inline constexpr std::size_t target_capacity = 2048;
inline constexpr std::size_t no_index = target_capacity;

// The targets in `targets` are never freed: a call may be running in another thread while a policy is replaced.
struct Target : host::Callable {
  // Read on every call.
  const Rule* listed = &no_rule;    // convert's rule
  const Rule* unlisted = &no_rule;  // the rule for suspended lists (rules 2 to 4)
  bool counts_no_version = false;   // torch does not increment the version counter of what it writes
  std::uint32_t line = 0;           // the line of a list that the counts are about, the first one that decided
  std::array<std::array<Count, rules::reasons.size()>, static_cast<std::size_t>(Precision::another)> counts{};

  // Read in regions: the index of its rule in RuleSet::rules.
  std::size_t index = no_index;

  // Read in unusual cases only.
  std::vector<std::pair<Decision, Count>> other_counts;  // by other lines, and in other dtypes
  Owned called;                                          // the function that a call of the object runs
  Owned equivalent;                                      // for a method: the equivalent function of two tensors
  std::string operation;                                 // the name that the lists and the report use
  std::string representation;                            // repr(object), for the log
  bool installed = false;
  bool in_policy = false;    // named by convert's policy
  bool in_regions = false;   // named by a region that was entered
  bool is_observed = false;  // the watch sees its calls, with or without a rule
  bool is_writer = false;    // the object is one of the tapped writers (taps.hpp)
};

// The targets by index; null beyond the last. The stubs in slots.cpp know their index at compile time.
extern std::array<Target*, target_capacity> targets;
extern std::size_t target_count;

// Returns the count of a decision of another line, or in another dtype.
Count& other_count(Target& target, Decision decision);

inline Count& count_of(Target& target, Decision decision) {
  const bool is_in_table = decision.line != 0 ? decision.line == target.line : decision.precision < Precision::another;
  if (!is_in_table) [[unlikely]]
    return other_count(target, decision);
  return target.counts[static_cast<std::size_t>(decision.precision)][static_cast<std::size_t>(decision.reason)];
}

// Returns null if the object has never been handled.
Target* find_target(PyObject* object) noexcept;

// Returns the target of an object, and makes it at the first call. Null with a Python exception set if there are too
// many targets or `repr(shown)` fails. The log shows `shown` for the target.
Target* target_for(PyObject* object, host::CallableKind kind, const char* operation, PyObject* shown);

// Makes calls of the method with two plain tensors call the builtin `function` instead. Ignores a method that is not
// handled or already has such a function, and a function with another calling convention.
void set_equivalent_function(PyObject* method, PyObject* function) noexcept;

// Makes the target of a Python function. It is not in `targets`, since users may make any number of them. Null with a
// Python exception set on failure. The counts of a dropped target stay in the report.
Target* make_function_target(PyObject* function, PyObject* shown, const std::string& operation);
void drop_function_target(Target* target) noexcept;

// The counts of calls, for all targets and for functions that no longer exist.
struct Counted {
  std::string operation;
  std::string representation;
  Decision decision;
  Count count;
};
std::vector<Counted> counts();
void reset_counts() noexcept;

}  // namespace habana_mp::engine

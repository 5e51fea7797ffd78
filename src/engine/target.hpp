// A target: one of torch's own C functions or methods that the engine can answer, with its rule and its counters.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "engine/rule.hpp"
#include "host/callables.hpp"

namespace habana_mp::engine {

struct Count {
  std::uint64_t calls = 0;
  std::uint64_t casts = 0;
  std::uint64_t bytes = 0;
  std::uint64_t small = 0;  // of the casts, those of weights that are too small to be kept

  Count& operator+=(const Count& other) noexcept {
    calls += other.calls;
    casts += other.casts;
    bytes += other.bytes;
    small += other.small;
    return *this;
  }
};

inline constexpr std::size_t target_capacity = 2048;
inline constexpr std::size_t no_index = target_capacity;

// Targets are never freed: a call may be under way in another thread while a policy is replaced.
struct Target : host::Callable {
  // Read on every call.
  const Rule* listed = &no_rule;    // what convert's policy says
  const Rule* unlisted = &no_rule;  // the rule outside of the lists (rules 2 to 4)
  bool counts_no_version = false;   // torch does not count up the version of what it writes
  std::array<std::array<Count, rules::reason_count>, rules::precision_count> counts{};

  // Read in regions: the place of its rule in theirs.
  std::size_t index = no_index;

  // Read when something is out of the ordinary.
  Owned called;                // the function that a call of the object runs
  Owned twin;                  // of a method: the function that does the same with two tensors
  std::string operation;       // the name that the lists and the report use
  std::string representation;  // repr(object), for the log
  bool installed = false;
  bool in_policy = false;    // of convert
  bool in_regions = false;   // of some region that was entered
  bool is_observed = false;  // the watch wants to see its calls, whether a rule names it or not
  bool is_writer = false;    // the object is one of those that are watched as writers (see watched.hpp)
};

// By index; null beyond the last. The stubs in slots.cpp know their index at compile time.
extern std::array<Target*, target_capacity> targets;
extern std::size_t target_count;

// Null when the object has never been covered.
Target* find_target(PyObject* object) noexcept;

// The target of an object, made when there is none. Null with a Python exception set when there is no room.
// `shown` is what the log calls it.
Target* target_for(PyObject* object, host::Shape shape, const char* operation, PyObject* shown);

// From now on the builtin `function` is called where the method is called with two plain tensors. Does nothing if the
// method is not covered, has such a function already, or `function` has another calling convention.
void set_function_twin(PyObject* method, PyObject* function) noexcept;

// The target of a Python function: not in `targets`, since users make as many as they like. The counts of a dropped
// target stay in the report.
Target* make_function_target(PyObject* function, PyObject* shown, const std::string& operation);
void drop_function_target(Target* target) noexcept;

// What was counted of calls: of all targets, and of functions that are gone.
struct Counted {
  const std::string& operation;
  const std::string& representation;
  Decision decision;
  const Count& count;
};
void for_each_count(const std::function<void(const Counted&)>& visit);
void reset_counts() noexcept;

}  // namespace habana_mp::engine

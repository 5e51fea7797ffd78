// Reads the arguments of a call.
#pragma once

#include <optional>

#include "engine/arguments.hpp"
#include "engine/rule.hpp"
#include "engine/target.hpp"
#include "host/reader.hpp"
#include "rules/decide.hpp"

namespace habana_mp::engine {

// The depth to which lists of tensors are read: LSTM takes a tuple of tensors, some operations take a list of tuples.
inline constexpr int deepest_sequence = 2;

// The kind of each argument, and the summary on which rules depend.
struct Reading : rules::Inputs {
  explicit Reading(Py_ssize_t count) : kinds(count) {}
  SmallBuffer<Kind> kinds;
};

// A call of a target, and the rule that applies to it.
struct Call {
  Target& target;
  const Rule& rule;
  const Arguments& arguments;
  const Reading& reading;

  // The floating inputs that have dimensions, or nullopt if every input has some.
  [[nodiscard]] std::optional<rules::Present> inputs_with_dimensions() const;
  // True if the inputs hold exactly one tensor, by itself or in a sequence.
  [[nodiscard]] bool holds_one_tensor() const;
  // True if there is a number that rule 9 may clamp.
  [[nodiscard]] bool has_number_beyond(Kind precision) const;
};

void read(const Rule& rule, const Arguments& arguments, Reading& reading);

// Returns the precision of the dtype that the call is given, or `unchanged` if it is given none.
Precision given_precision(const Arguments& arguments);

// Excludes tensors without dimensions from the casts. `reading` is that of the call.
void leave_out_numbers(const Call& call, Reading& reading);

// True if this sequence may be replaced by a plain list or tuple. A user-defined function may need its class (a named
// tuple's).
inline bool may_exchange(const Rule& rule, PyObject* sequence) {
  return rule.reason != Reason::op_wrap || PyList_CheckExact(sequence) || PyTuple_CheckExact(sequence);
}

// True if `test(value, kind)` holds for an argument or for an item of a list or tuple among them.
template <typename Test>
bool is_any_tensor(const Arguments& arguments, const Test& test, int depth = 0) {
  for (Py_ssize_t i = 0; i < arguments.count(); ++i) {
    PyObject* const value = arguments.values[i];
    const Kind kind = host::kind_of(value);
    const bool is_list = kind == Kind::sequence && depth < deepest_sequence;
    if (is_list
            ? is_any_tensor({PySequence_Fast_ITEMS(value), PySequence_Fast_GET_SIZE(value), nullptr}, test, depth + 1)
            : test(value, kind)) {
      return true;
    }
  }
  return false;
}

bool holds_sparse_tensor(const Arguments& arguments, const Reading& reading);

// True if the rule allows a cast of this argument.
bool may_cast(const Rule& rule, const Arguments& arguments, Py_ssize_t i);

}  // namespace habana_mp::engine

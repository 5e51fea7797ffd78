// What the arguments of a call are.
#pragma once

#include <optional>

#include "engine/arguments.hpp"
#include "engine/rule.hpp"
#include "engine/target.hpp"
#include "rules/decide.hpp"

namespace habana_mp::engine {

// How deep lists of tensors are followed: LSTM takes a tuple of tensors, some operations a list of tuples.
inline constexpr int deepest_sequence = 2;

// One kind for each argument, and what rules ask of all.
struct Reading : rules::Inputs {
  explicit Reading(Py_ssize_t count) : kinds(count) {}
  SmallBuffer<Kind> kinds;
};

// A call of a target, and the rule that speaks about it.
struct Call {
  Target& target;
  const Rule& rule;
  const Arguments& arguments;
  const Reading& reading;
};

void read(const Rule& rule, const Arguments& arguments, Reading& reading);

// The floating inputs that have dimensions. None where every input has some.
std::optional<rules::Present> inputs_with_dimensions(const Call& call);
// Keeps tensors without dimensions from being cast. `reading` is that of the call.
void leave_out_numbers(const Call& call, Reading& reading);

// May this sequence be exchanged for a plain list or tuple? A user's own function may want its class (a named tuple's).
inline bool may_exchange(const Rule& rule, PyObject* sequence) {
  return rule.reason != Reason::op_wrap || PyList_CheckExact(sequence) || PyTuple_CheckExact(sequence);
}

// Is there one tensor, by itself or in a sequence?
bool holds_one_tensor(const Arguments& arguments, const Reading& reading);

bool holds_sparse_tensor(const Arguments& arguments, const Reading& reading);

// Is there a number that rule 9 may change?
bool has_number_beyond(Kind precision, const Arguments& arguments);

}  // namespace habana_mp::engine

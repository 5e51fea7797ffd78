// What the arguments of a call are, and what its rule makes of them.
#pragma once

#include "engine/arguments.hpp"
#include "engine/rule.hpp"

namespace habana_mp::engine {

// How deep lists of tensors are followed: LSTM takes a tuple of tensors, some operations a list of tuples.
inline constexpr int deepest_sequence = 2;

// What the arguments are: one kind for each, and the set of all.
struct Reading {
  explicit Reading(Py_ssize_t count) : kinds(count) {}
  SmallBuffer<tensor::Kind> kinds;
  tensor::Kinds seen = 0;
  tensor::Kind first = tensor::Kind::other;  // the first floating tensor's
  Py_ssize_t target = 0;                     // where the argument is that is written into, in place; -1: nowhere
  bool explicit_out = false;
  bool explicit_dtype = false;

  void note(tensor::Kind kind) {
    seen |= tensor::bit(kind);
    if (first == tensor::Kind::other && tensor::is_floating(kind)) first = kind;
  }
};

void read(const Rule& rule, const Arguments& arguments, Reading& reading);

struct Plan {
  Decision decision;
  tensor::Kind to = tensor::Kind::other;  // other: nothing is to be cast
};

// Under rule 2 tensors without dimensions are taken out of the reading where torch promotes them as it does numbers.
Plan decide(const Rule& rule, const Arguments& arguments, Reading& reading);

// The widest precision among the inputs (rule 2).
tensor::Kind widest(const Reading& reading);

// Is anything to be done for this plan?
inline bool must_cast(const Plan& plan, const Reading& reading) {
  return plan.to != tensor::Kind::other && (reading.seen & tensor::floating & ~tensor::bit(plan.to)) != 0;
}

// What a cast to this kind, or to none, is told as.
Precision precision_of(tensor::Kind kind);

// May this sequence be exchanged for a plain list or tuple? A user's own function may want its class (a named tuple's).
inline bool may_exchange(const Rule& rule, PyObject* sequence) {
  return rule.reason != Reason::op_wrap || PyList_CheckExact(sequence) || PyTuple_CheckExact(sequence);
}

// Is the argument true that makes the gradient of the first input sparse? To be asked of rules that name one.
bool has_sparse_gradient(const Rule& rule, const Arguments& arguments);

// Is there one tensor, by itself or in a sequence?
bool holds_one_tensor(const Arguments& arguments, const Reading& reading);

bool holds_sparse_tensor(const Arguments& arguments, const Reading& reading);

// Is there a number that rule 9 may change?
bool has_number_beyond(tensor::Kind precision, const Arguments& arguments);

}  // namespace habana_mp::engine

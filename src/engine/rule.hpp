// A rule: what a policy says of one operation, resolved when the policy is installed. The hot path reads nothing else.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>

#include "rules/rule.hpp"
#include "weights/packs.hpp"

namespace habana_mp::engine {

using rules::Action;
using rules::Decision;
using rules::Precision;
using rules::Reason;

// Which arguments may be cast. Keywords are tuples of interned strings, kept for the life of the process, or null for
// none. Of positions the first 64 are told apart; later ones may be cast.
struct Castable {
  std::uint64_t positions = ~std::uint64_t{0};
  PyObject* kept_keywords = nullptr;  // of those that may not be cast
  // To float32, but not lower.
  std::uint64_t raised_positions = 0;
  PyObject* raised_keywords = nullptr;
  // Lower off the CPU only: its kernels take them in float32 beside a lower input.
  std::uint64_t off_cpu_positions = 0;
  PyObject* off_cpu_keywords = nullptr;
  // What the argument that is written into is called, for Action::in_place.
  PyObject* target_keywords = nullptr;

  bool operator==(const Castable&) const = default;
};

// What depends on the arguments of a call: Python functions of them, kept for the life of the process, or null. What
// each tells is said of rules::Rule.
struct Questions {
  PyObject* makes_product = nullptr;
  PyObject* is_fused = nullptr;
  PyObject* adds_up = nullptr;
  PyObject* wrong_in_bf16 = nullptr;
  bool wrong_if_strided = false;  // asked only where the stride, the fourth argument, is another than 1
  // The argument that, where it is true, makes the gradient of the first input sparse: its keyword (a tuple of that one
  // string, or null) and its position. A cast cannot pass on such a gradient, so the lists are silent for that call.
  PyObject* sparse_keyword = nullptr;
  std::uint8_t sparse_position = 0;
  // For a product: the argument whose last dimension has its terms: its keyword (a tuple of that string, or null) and
  // its position.
  PyObject* terms_keyword = nullptr;
  std::uint8_t terms_position = 0;

  bool operator==(const Questions&) const = default;
};

// How casts are made, and what may make a call faster.
struct Means {
  // Rule 9, of tensors without dimensions.
  bool saturates_tensors = false;
  // May casts of weights be kept for this operation? Only where no result shares memory with an argument.
  bool keeps_weights = false;
  // Does it go through sequences step by step, with the weights in the last list that it is given?
  bool takes_steps = false;
  // Does torch's own autocast cast the same inputs of it on the CPU?
  bool casts_inside = false;
  // Can it be answered from a packed weight?
  weights::Packs packs = weights::Packs::nothing;
  // Gives the first input in rows that lie evenly where the operation, a product, is slow on others: a Python function
  // of both inputs, for a tracer's tensors, kept for the life of the process; null for any other operation.
  PyObject* in_rows = nullptr;

  bool operator==(const Means&) const = default;
};

struct Rule : rules::Rule {
  Castable castable;
  Questions questions;
  Means means;
  // For Action::none: the rule of calls that are given a tensor which is lower already, kept for the life of the
  // process; null where there is none. Where nothing is to be lowered, what is lower obeys all the same.
  const Rule* of_lower = nullptr;
  // Does the operation write into a result that it is given without counting the version up?
  bool counts_no_version = false;

  bool operator==(const Rule&) const = default;

  // Is each weight a part of one product?
  bool takes_weights_once() const { return means.keeps_weights && !means.takes_steps; }
  bool may_cast(Py_ssize_t position) const { return position >= 64 || ((castable.positions >> position) & 1U) != 0; }
};

// The one object that stands for this rule. It is never freed, so a call under way may go on reading it while another
// policy is installed.
const Rule* intern(const Rule& rule);

// The rule of what is not covered.
inline constexpr Rule no_rule{};

// What holds of two rules, that of the lists and that where they are silent, where nothing is to be lowered.
Rule without_lowering(const Rule& listed, const Rule& unlisted);

}  // namespace habana_mp::engine

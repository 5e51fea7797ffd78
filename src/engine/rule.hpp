// A rule: what a policy says of one operation, resolved when the policy is installed. The hot path reads nothing else.
#pragma once

#include <cstdint>

#include "engine/decision.hpp"
#include "tensor/reader.hpp"
#include "weights/packed.hpp"

namespace habana_mp::engine {

struct Rule {
  enum class Action : std::uint8_t {
    none,         // the operation is not covered
    precision,    // rule 1: every eligible input in one precision
    widest,       // rule 2: every eligible input in the widest among them
    in_place,     // rule 3: the first input keeps its precision, the others follow
    first_input,  // rule 4: the others follow the first floating input
    scalars,      // rule 9 alone: torch accepts the mixture, but not a number beyond the range of the first input
    refused,      // the operation's backward would lose values in the lower precision: an error
  };

  Action action = Action::none;
  tensor::Kind to = tensor::Kind::other;  // for Action::precision
  Reason reason = Reason::list;
  // For Action::none: the rule of calls that are given a tensor which is lower already, kept for the life of the
  // process; null where there is none. Where nothing is to be lowered, what is lower obeys all the same.
  const Rule* of_lower = nullptr;
  // Rule 2: does torch itself promote a tensor without dimensions as it does a number?
  bool promotes = false;
  // Rule 9: Python scalars beyond the range of the precision are brought into it; and tensors without dimensions.
  bool saturate = false;
  bool saturate_tensors = false;
  // Arguments that may be cast to float32 but not lower (positions, keywords), and those that are lowered off the CPU
  // only: kernels take them in float32 beside a lower input. Keywords as kept_keywords.
  std::uint64_t raised_positions = 0;
  PyObject* raised_keywords = nullptr;
  std::uint64_t off_cpu_positions = 0;
  PyObject* off_cpu_keywords = nullptr;
  // Which positional arguments may be cast; the first 64 are told apart.
  std::uint64_t positions = ~std::uint64_t{0};
  // Keywords that may not be cast (a tuple of interned strings, kept for the life of the process), or null.
  PyObject* kept_keywords = nullptr;
  // What the argument that is written into is called, for Action::in_place. Keywords as kept_keywords.
  PyObject* target_keywords = nullptr;
  // The argument that, where it is true, makes the gradient of the first input sparse: its keyword (a tuple of that one
  // string, or null) and its position. A cast cannot pass on such a gradient, so the lists are silent for that call.
  PyObject* sparse_keyword = nullptr;
  std::uint8_t sparse_position = 0;
  // Who tells, with the arguments of a call, whether the CPU's library would get it or its gradient wrong in bfloat16:
  // a Python function, kept for the life of the process, or null. With `wrong_if_strided` only where the stride, the
  // fourth argument, is another than 1.
  PyObject* is_wrong = nullptr;
  bool wrong_if_strided = false;
  // Who tells, with the arguments of a call, whether it, or its gradient, adds up what our casts made lower: then it is
  // made in float32 and its result rounded. A Python function, kept for the life of the process, or null.
  PyObject* sums = nullptr;
  // May casts of weights be kept for this operation? Only where no result shares memory with an argument.
  bool keeps_weights = false;
  // Who gives the first input in rows that lie evenly where the operation, a product, is slow on others: a Python
  // function of both inputs, for a tracer's tensors, kept for the life of the process; null for any other operation.
  PyObject* in_rows = nullptr;
  // Does it go through sequences step by step, with the weights in the last list that it is given? And who tells
  // whether one kernel computes a call, which is lowered as a whole then: a Python function as above, or null.
  bool takes_steps = false;
  PyObject* is_fused = nullptr;
  // Does torch's own autocast cast the same inputs of it on the CPU?
  bool casts_inside = false;
  // With one tensor alone, does it give a view of it, or only sum it up (`einsum("ii->i", x)`)?
  bool views_one = false;
  // Who tells, with the arguments of a call, whether it makes a matrix product, and the list means only those that do:
  // a Python function, kept for the life of the process, or null.
  PyObject* makes_product = nullptr;
  // Does the list mean no more than the matrix products that torch makes inside, of the weights in the last list that
  // it is given? All else, what it keeps from step to step among it, stays in the precision that it comes in.
  bool products_inside = false;
  // May a call that failed be made again with other casts? Not where it may have written into an argument first.
  bool may_repeat = true;
  // Does it write into a result that it is given without counting the version up?
  bool counts_no_version = false;
  // Does it add up products? Kernels for sparse tensors do so in the lower precision, where they have one.
  bool is_product = false;
  // Can it be answered from a packed weight?
  weights::Packs packs = weights::Packs::nothing;

  bool operator==(const Rule&) const = default;

  // Is there more to look at where nothing is to be cast and the precision is a lower one?
  bool looks_closer() const { return is_product || sums != nullptr; }
  // Is each weight a part of one product?
  bool takes_weights_once() const { return keeps_weights && !takes_steps; }
  bool may_cast(Py_ssize_t position) const { return position >= 64 || ((positions >> position) & 1U) != 0; }
};

// The one object that stands for this rule. It is never freed, so a call under way may go on reading it while another
// policy is installed.
const Rule* intern(const Rule& rule);

// The rule of what is not covered.
inline constexpr Rule no_rule{};

// What holds of two rules, that of the lists and that where they are silent, where nothing is to be lowered.
Rule without_lowering(const Rule& listed, const Rule& unlisted);

}  // namespace habana_mp::engine

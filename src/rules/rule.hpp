// The part of an operation's rule on which decisions depend.
#pragma once

#include <cstdint>

#include "rules/decision.hpp"
#include "rules/kind.hpp"

namespace habana_mp::rules {

enum class Action : std::uint8_t {
  none,         // the operation is not handled
  precision,    // rule 1: every eligible input in one precision
  widest,       // rule 2: every eligible input in the widest among them
  in_place,     // rule 3: the first input keeps its precision, the others are cast to it
  first_input,  // rule 4: the others are cast to the precision of the first floating input
  scalars,      // rule 9 alone: torch accepts mixed precisions, but no number beyond the range of the first input
  refused,      // an error: the operation's backward would lose values in the lower precision
};

struct Rule {
  Action action = Action::none;
  Kind to = Kind::other;  // for Action::precision
  Reason reason = Reason::list;

  // Rule 2: true if torch itself promotes a tensor without dimensions as it does a number.
  bool promotes = false;
  // Rule 2: true if the operation adds dimensions to tensors without any before it joins them with the others.
  bool gives_dimensions = false;
  // Rule 9: true if Python numbers beyond the range of the precision are clamped to it.
  bool saturates = false;
  // True if the operation returns a view of a single tensor or only sums it (`einsum("ii->i", x)`).
  bool views_one = false;
  // True if it computes each value of the result by itself, as arithmetic does.
  bool is_elementwise = false;
  // True if it adds up products. Kernels for sparse tensors add up in the lower precision, if they support it.
  bool is_product = false;
  // True if the lists do not apply to products of three terms without a weight in the forward of a module. Such
  // products rotate points.
  bool leaves_points = false;
  // True if the list applies only to calls that make a matrix product.
  bool only_with_product = false;
  // True if the list applies only to the matrix products that torch makes inside. Everything else stays in its
  // precision, including the state that a recurrent layer passes from step to step.
  bool products_inside = false;
  // True if one kernel may compute a call as a whole. Such a call is lowered as a whole.
  bool may_be_fused = false;
  // True if the CPU library gets some calls, or their gradients, wrong in bfloat16.
  bool may_be_wrong = false;
  // True if calls, or their gradients, may add up in the lower precision. Those are made in float32, and the result is
  // rounded.
  bool may_add_up = false;
  // True if a failed call may be made again with other casts. False if it may already have written into an argument.
  bool may_repeat = true;

  bool operator==(const Rule&) const = default;
};

}  // namespace habana_mp::rules

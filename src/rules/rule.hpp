// What a policy says of one operation, as far as it decides about a call.
#pragma once

#include <cstdint>

#include "rules/decision.hpp"
#include "rules/kind.hpp"

namespace habana_mp::rules {

enum class Action : std::uint8_t {
  none,         // the operation is not covered
  precision,    // rule 1: every eligible input in one precision
  widest,       // rule 2: every eligible input in the widest among them
  in_place,     // rule 3: the first input keeps its precision, the others follow
  first_input,  // rule 4: the others follow the first floating input
  scalars,      // rule 9 alone: torch accepts the mixture, but not a number beyond the range of the first input
  refused,      // the operation's backward would lose values in the lower precision: an error
};

struct Rule {
  Action action = Action::none;
  Kind to = Kind::other;  // for Action::precision
  Reason reason = Reason::list;

  // Rule 2: does torch itself promote a tensor without dimensions as it does a number?
  bool promotes = false;
  // Rule 2: true where the operation gives tensors without dimensions some, before it takes all together.
  bool gives_dimensions = false;
  // Rule 9: are Python numbers beyond the range of the precision brought into it?
  bool saturates = false;
  // With one tensor alone, does it give a view of it, or only sum it up (`einsum("ii->i", x)`)?
  bool views_one = false;
  // True if it computes each value of the result by itself, as arithmetic does.
  bool is_elementwise = false;
  // Does it add up products? Kernels for sparse tensors do so in the lower precision, where they have one.
  bool is_product = false;
  // True if the lists do not mean products of three terms without a weight in the forward of a module: they turn
  // points.
  bool leaves_points = false;
  // Does the list mean only those calls that make a matrix product?
  bool only_with_product = false;
  // Does the list mean no more than the matrix products that torch makes inside? All else, what a recurrent layer keeps
  // from step to step among it, stays in the precision that it comes in.
  bool products_inside = false;
  // Can one kernel compute a call as a whole, which is lowered as a whole then?
  bool may_be_fused = false;
  // Are there calls that the CPU's library gets wrong in bfloat16, or their gradients?
  bool may_be_wrong = false;
  // True where calls, or their gradients, may add up in the lower precision. These are made in float32, and the result
  // is rounded.
  bool may_add_up = false;
  // May a call that failed be made again with other casts? Not where it may have written into an argument first.
  bool may_repeat = true;

  bool operator==(const Rule&) const = default;
};

}  // namespace habana_mp::rules

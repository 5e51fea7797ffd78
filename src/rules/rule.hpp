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
  operands,     // every eligible input in the one lower precision among them, if there is one
  scalars,      // rule 9 alone: torch accepts mixed precisions, but no number beyond the range of the first input
  left,         // nothing is cast, and the call is counted: opt_level="O0"
  refused,      // an error: the operation's backward would lose values in the lower precision
};

// The traits of an operation, true or false. Python passes them by these names; see the columns of ops/operation.py.
#define HABANA_MP_TRAITS(TRAIT)                                                                                     \
  /* Rule 2: torch itself promotes a tensor without dimensions as it does a number. */                              \
  TRAIT(promotes)                                                                                                   \
  /* Rule 2: the operation adds dimensions to tensors without any before it joins them with the others. */          \
  TRAIT(gives_dimensions)                                                                                           \
  /* Rule 9: Python numbers beyond the range of the precision are clamped to it, and tensors without dimensions. */ \
  TRAIT(saturates)                                                                                                  \
  TRAIT(saturates_tensors)                                                                                          \
  /* The operation returns a view of a single tensor or only sums it (`einsum("ii->i", x)`). */                     \
  TRAIT(views_one)                                                                                                  \
  /* It computes each value of the result by itself, as arithmetic does. */                                         \
  TRAIT(is_elementwise)                                                                                             \
  /* It adds up products. */                                                                                        \
  TRAIT(is_product)                                                                                                 \
  /* Of a product in lower precision only the operands are rounded: its result is in float32. */                    \
  TRAIT(float32_result)                                                                                             \
  /* The list applies only to the matrix products that torch makes inside. Everything else stays in its precision,  \
     including the state that a recurrent layer passes from step to step. */                                        \
  TRAIT(products_inside)                                                                                            \
  /* A failed call may already have written into an argument, so it is not made again. */                           \
  TRAIT(is_not_repeated)                                                                                            \
  /* Only a stride other than 1, or few input channels with long rows, can make a call wrong. */                    \
  TRAIT(wrong_if_strided)                                                                                           \
  /* It writes into a given result without incrementing the version counter. */                                     \
  TRAIT(counts_no_version)                                                                                          \
  /* Casts of weights may be cached. Requires that no result shares memory with an argument. */                     \
  TRAIT(caches_weights)                                                                                             \
  /* It processes sequences step by step, with the weights in its last list argument. */                            \
  TRAIT(is_recurrent)                                                                                               \
  /* Torch's own autocast on the CPU casts the same inputs. */                                                      \
  TRAIT(casts_inside)

struct Rule {
  Action action = Action::none;
  Kind to = Kind::other;  // for Action::precision
  Reason reason = Reason::list;
  std::uint32_t line = 0;  // the number of the line that made it, if `has_line(reason)`
#define HABANA_MP_MEMBER(name) bool name = false;
  HABANA_MP_TRAITS(HABANA_MP_MEMBER)
#undef HABANA_MP_MEMBER

  bool operator==(const Rule&) const = default;
};

}  // namespace habana_mp::rules

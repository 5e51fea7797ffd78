// Products in lower precision, once their operands are. A product is one thing on every processor: the operands are
// rounded, their products are summed in float32, and the sum is rounded once. A processor without instructions for it
// computes in float32 with the rounded operands.
#pragma once

#include <array>

#include "engine/cast_arguments.hpp"
#include "engine/state.hpp"

namespace habana_mp::engine {

struct ProductSettings {
  // True if the processor, and torch's library for it, multiply numbers of this kind.
  bool multiplies_bf16 = true;
  bool multiplies_f16 = true;
  // By form: a Python function for calls that autograd tracks, or null. It takes torch's function, the positional
  // arguments of the call as a tuple, and for a result in float32 the arguments as they were given, else None. It
  // returns the result or NotImplemented.
  std::array<Owned, product_forms> tracked;
  // For results in float32. The first function takes tuples of the operands and of the arguments as they were given,
  // and whether the call is traced; it returns the operands in float32. The second one takes the result, the dtype of
  // the operands, and the same; it returns the result so that its gradient is rounded once.
  Owned widened;
  Owned with_rounded_gradient;
};
extern NeverDestroyed<ProductSettings> product_settings;

// Returns a product of rows and a matrix that autograd does not track, computed by our own kernels (own_products.cpp).
// They read the weight as it is stored in memory: a cached cast, or a weight that is in lower precision itself. The
// operands are in this lower precision; so are the bias and the result, or these are in float32. Returns null if our
// kernels do not compute such a call, or are slower there; an exception is set only for an interrupt.
Owned multiply(ProductForm form, const Arguments& arguments, Kind kind, bool float32_result);

// True if products of this kind are computed in float32 here.
inline bool lacks_instructions(Kind kind) noexcept {
  return kind == Kind::bf16 ? !product_settings->multiplies_bf16
                            : kind == Kind::f16 && !product_settings->multiplies_f16;
}

// True if products are computed as those that autograd tracks.
inline bool computes_as_tracked() noexcept { return host::grad_is_enabled() || thread_state.runs_again; }

// True if a call whose operands will be in `to` is not left to torch's function for that precision.
bool is_computed_here(const Rule& rule, const Arguments& arguments, Kind to);

// Calls an operation with its arguments, whose castable tensors are in `to`; those of `call` are as they were given.
// With `in_float32` it is computed in float32 on every processor. Returns null with an exception set if it fails.
Owned call_lowered(const Call& call, const Arguments& arguments, Kind to, bool in_float32);

// True if a recurrent layer is computed in float32 here. An LSTM with a projection is not: some of its results are
// those of products, in the lower precision.
bool may_call_layer_in_float32(const Call& call, Kind to, Py_ssize_t position_of_weights);

// Calls a recurrent layer in float32, with the input and the weights rounded to `to`. Its state is not rounded from
// step to step; the results have the precision of the state that is given.
Owned call_layer_in_float32(const Call& call, Kind to, Py_ssize_t position_of_weights, CastContext& context);

}  // namespace habana_mp::engine

// Packed weights. Casts of the weights of convolutions are cached in the layout of torch's CPU library (oneDNN), which
// then need not convert them in every call; where we have no kernels of our own, those of linear layers as well. A
// packed weight is used in calls that autograd does not track, and gives the same bits.
#pragma once

#include <cstdint>

#include "accel/products/call.hpp"
#include "host/reader.hpp"
#include "owned.hpp"

namespace habana_mp::accel {

// Private torch operators for one kind of call; null if torch lacks them, or if they are not to be used.
struct PackingOperators {
  Owned pack;   // linear: (weight, None); conv2d: (weight, padding, stride, dilation, groups, sizes)
  Owned call;   // (input, packed weight, bias, [padding, stride, dilation, groups,] "none", [], "")
  Owned plain;  // torch's own function, unpatched
};
// Sets the operators. Weights that are packed already stay packed.
void set_packing(Packs what, PackingOperators wanted) noexcept;

// For tests: how products and convolutions are computed. `library` packs each weight, without a measurement.
// `own_in_any_order` takes our kernels even if they give other bits than torch's function, so that all the rest can be
// tested on every processor that runs them.
enum class Assumed : std::uint8_t { measured, nothing, library, own_in_any_order };
void assume_products(Assumed wanted) noexcept;
Assumed assumed_products() noexcept;

// True if calls of this kind can be computed from packed weights here, with some weight and other arguments.
bool may_pack(const WeightCall& call) noexcept;

// True if this call should be prepared, because its weight is packed for it, or because packing the weight may pay.
bool may_be_packed(const WeightCall& call, Kind to);

// Returns the result, computed from the packed weight. Input and bias are in the weight's precision already. Returns
// null if the call is to be made in the ordinary way; an exception is set only for an interrupt.
Owned compute_from_packed(const WeightCall& call, Kind to);

}  // namespace habana_mp::accel

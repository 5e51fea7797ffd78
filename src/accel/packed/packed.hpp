// Packed weights. Casts of the weights of linear layers and convolutions are cached in the layout of torch's CPU
// library (oneDNN), which then need not convert them in every call. Casts for linear layers and other products may be
// cached in the layout of our own kernels instead (panels.hpp). A packed weight is used in calls that autograd does not
// track, and gives the same bits.
#pragma once

#include <cstdint>

#include "host/reader.hpp"
#include "owned.hpp"
#include "weights/packs.hpp"

namespace habana_mp::accel {

using weights::Packs;
using weights::packs_count;

// Private torch operators for one kind of call; null if torch lacks them, or if they are not to be used.
struct PackingOperators {
  Owned pack;   // linear: (weight, None); conv2d: (weight, padding, stride, dilation, groups, sizes)
  Owned call;   // (input, packed weight, bias, [padding, stride, dilation, groups,] "none", [], "")
  Owned plain;  // torch's own function, unpatched
};
// Sets the operators. Weights that are packed already stay packed.
void set_packing(Packs what, PackingOperators wanted) noexcept;

// For tests: the layout that counts as the fastest, without a measurement. `panels_in_any_order` takes our kernels even
// if they give other bits than torch's function, so that all the rest can be tested on every processor that runs them.
enum class Assumed : std::uint8_t { measured, nothing, library, panels, panels_in_any_order };
void assume_packing(Assumed wanted) noexcept;
Assumed assumed_packing() noexcept;

// A call as it was written. The weight is a torch.nn.Parameter in float32.
struct PackedCall {
  Packs what = Packs::nothing;
  PyObject* input = nullptr;
  PyObject* weight = nullptr;
  PyObject* bias = nullptr;            // may be None
  PyObject* const* options = nullptr;  // for conv2d: stride, padding, dilation, groups
  // True if the call was written with the weight's transposed view. The view is one more tensor that has the weight's
  // memory.
  bool transposed = false;
  // For conv2d, whose packed form works in channels-last order: true if the input is in channels-first order, so that
  // the input and the result are reordered. Used only if that gives the same bits.
  bool reorders = false;

  [[nodiscard]] bool is_product() const { return what != Packs::conv2d; }
  // True for a product whose weight is [inner][outer]. A linear layer's weight is [outer][inner].
  [[nodiscard]] bool is_inner_first() const { return is_product() && (what != Packs::linear) != transposed; }
};

// True if calls of this kind can be computed from packed weights here, with some weight and other arguments.
bool may_pack(const PackedCall& call) noexcept;

// True if this call should be prepared, because its weight is packed for it, or because packing the weight may pay.
bool may_be_packed(const PackedCall& call, Kind to);

// Returns the result, computed from the packed weight. Input and bias are in the weight's precision already. Returns
// null if the call is to be made in the ordinary way; an exception is set only for an interrupt.
Owned compute_from_packed(const PackedCall& call, Kind to);

}  // namespace habana_mp::accel

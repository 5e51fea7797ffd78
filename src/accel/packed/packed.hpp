// Kept casts of the weights of linear layers and convolutions in the layout of torch's CPU library (oneDNN), which
// spares it to bring them there in every call, or of linear layers and other products in that of our own kernels
// (panels.hpp). Such a weight serves where nothing is recorded; the results are the same bits.
#pragma once

#include <cstdint>

#include "host/reader.hpp"
#include "owned.hpp"
#include "weights/packs.hpp"

namespace habana_mp::accel {

using weights::Packs;
using weights::packs_count;

// Private operators of torch for one of them; null where it has none, or where they are not to be used.
struct PackingOperators {
  Owned pack;   // of linear (weight, None); of conv2d (weight, padding, stride, dilation, groups, sizes)
  Owned call;   // (input, packed weight, bias, [padding, stride, dilation, groups,] "none", [], "")
  Owned plain;  // torch's own function, untouched
};
// What is packed by then stays packed.
void set_packing(Packs what, PackingOperators wanted) noexcept;

// For tests: what is taken for the fastest, whatever it takes. The last one takes our kernels even where they give
// other bits than torch's function: so all else about their weights can be tried on every processor that runs them.
enum class Assumed : std::uint8_t { measured, nothing, library, panels, panels_in_any_order };
void assume_packing(Assumed wanted) noexcept;
Assumed assumed_packing() noexcept;

// A call as it was written. The weight is a torch.nn.Parameter in float32.
struct PackedCall {
  Packs what = Packs::nothing;
  PyObject* input = nullptr;
  PyObject* weight = nullptr;
  PyObject* bias = nullptr;            // may be None
  PyObject* const* options = nullptr;  // of conv2d: stride, padding, dilation, groups
  // The call was written with the weight's transposed view. The view is one more tensor that has the weight's memory.
  bool transposed = false;
  // Of conv2d, whose packed form works in channels-last order: the input is in channels-first order, so it and the
  // result are brought from one order to the other. Only where that gives the same bits.
  bool reorders = false;

  [[nodiscard]] bool is_product() const { return what != Packs::conv2d; }
  // Is it a product of which the weight is [inner][outer], and not [outer][inner] as a linear layer's?
  [[nodiscard]] bool is_inner_first() const { return is_product() && (what != Packs::linear) != transposed; }
};

// Are calls of this kind ever answered from packed weights here? Their weight and the rest does not matter.
bool may_pack(const PackedCall& call) noexcept;

// Is it worth to prepare this call: is its weight packed for it, or may it pay to pack it?
bool may_be_packed(const PackedCall& call, Kind to);

// The result from the packed weight, where input and bias are in its precision by now. Null, without an exception,
// where the call is to be made the ordinary way.
Owned answer(const PackedCall& call, Kind to);

}  // namespace habana_mp::accel

// Linear layers and other products that our own kernels compute from cached weights, if the kernels give the bits of
// torch's function and are faster than its library's packed weights. The library spends time on the preparation of each
// call, however small; our kernels do not. They multiply two bfloat16 and add in float32 with the same processor
// instructions as the library, or in the same order. Only for this directory.
#pragma once

#include <cstdint>
#include <optional>

#include "accel/packed/packed.hpp"
#include "accel/packed/trial.hpp"
#include "kernels/product.hpp"
#include "weights/entry.hpp"

namespace habana_mp::accel {

using kernels::Sums;
using weights::Entry;
using weights::Layout;

// The result of a trial of one kind of call.
struct PanelVerdict {
  bool is_faster;
  Sums sums;
};

// Returns the verdict on calls like this one. Returns nothing if no such call was tried yet, or if such calls cannot be
// tried.
std::optional<PanelVerdict> known_verdict(const Entry& entry, const PackedCall& call) noexcept;

// True if our kernels may compute such calls at all.
bool may_try_panels(const Entry& entry, const PackedCall& call) noexcept;

// Tries such calls with other values than the call's. Other code may run meanwhile. Returns nothing if the trial
// failed; an interrupt leaves its exception set.
std::optional<PanelVerdict> try_panels(Entry& entry, const PackedCall& call);

void forget_panel_verdicts() noexcept;

// A weight with fewer values is not worth a measurement.
inline constexpr std::int64_t least_elements_to_try = 1 << 6;

inline Layout panels_for(const PackedCall& call) {
  return call.is_inner_first() ? Layout::inner_first : Layout::panels;
}

// Returns the weight's cast in the kernels' layout. `inner_first` is true if the cast is [inner][outer]. Returns null
// if that is not possible; an exception is set only for an interrupt.
Owned make_panels(PyObject* cast, bool inner_first);

// Returns the product. Input and bias are bfloat16 already. Returns null as `make_panels` does.
Owned multiply_panels(const PackedCall& call, PyObject* panels, const Sides& sides, const Sums& sums);

}  // namespace habana_mp::accel

// Linear layers and other products from kept weights that our own kernels read, where these give the bits of torch's
// and are faster than its library's packed weights. The library takes its time over each call, however small; our
// kernels do not, and theirs are the products of two bfloat16 and a sum in float32 by the same instructions of the
// processor, or in their order. For this room only.
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
using weights::Form;

// What was found out about calls of a kind.
struct PanelVerdict {
  bool pays;
  Sums sums;
};

// Of calls like this one; nothing where none was tried yet, or where there is nothing to try.
std::optional<PanelVerdict> known_verdict(const Entry& entry, const PackedCall& call) noexcept;

// May our kernels answer such calls at all?
bool may_try_panels(const Entry& entry, const PackedCall& call) noexcept;

// Tries it, with values of its own. Others may run meanwhile. Nothing where the trial failed; an interrupt leaves its
// exception.
std::optional<PanelVerdict> try_panels(Entry& entry, const PackedCall& call);

void forget_panel_verdicts() noexcept;

// Fewer values are not worth a measurement.
inline constexpr std::int64_t worth_trying = 1 << 6;

inline Form panels_for(const PackedCall& call) { return call.is_inner_first() ? Form::inner_first : Form::panels; }

// The weight's kept cast in the kernels' order; null, without an exception but an interrupt's, where it cannot be made.
// `inner_first` tells that the cast is [inner][outer].
Owned make_panels(PyObject* cast, bool inner_first);

// The product, where input and bias are bfloat16 by now; as above.
Owned multiply_panels(const PackedCall& call, PyObject* panels, const Sides& sides, const Sums& sums);

}  // namespace habana_mp::accel

// Linear layers and other products that our own kernels compute, if the kernels give the bits of torch's function. The
// kernels read the weight as it is stored in memory: a cached cast, or a weight that is in bfloat16 itself. Torch's
// library brings it into a layout of its own in each call, and spends time on the preparation of each call, however
// small. Our kernels multiply two bfloat16 and add in float32 with the same processor instructions as the library, or
// in the same order. Only for this directory.
#pragma once

#include <optional>

#include "accel/products/trial.hpp"
#include "kernels/product.hpp"

namespace habana_mp::accel {

using kernels::Sums;

// True if calls of this kind may be computed by our kernels here.
bool may_multiply(const WeightCall& call) noexcept;

// True if our kernels are worth trying for such calls: they are at least as fast as torch's function with few rows, and
// without AMX with many rows as well.
bool is_worth_multiplying(const ProductCase& one) noexcept;

// Returns the sums for such calls, or no sums if our kernels give other bits. Returns null if none was tried yet. The
// address is valid until other code runs.
const std::optional<Sums>* known_sums(const ProductCase& one) noexcept;

// Tries such calls, once, with other values than the call's, which is in bfloat16. Other code may run meanwhile.
// Returns nothing if no sums give the bits of torch's function, or if the trial failed; an interrupt leaves its
// exception set.
std::optional<Sums> try_sums(const ProductCase& one, const WeightCall& like);

void forget_sums() noexcept;

// Returns the product. Input, weight and bias are in bfloat16. Returns null if that is not possible; an exception is
// set only for an interrupt.
Owned multiply(const ProductCase& one, const WeightCall& call, const Sums& sums);

}  // namespace habana_mp::accel

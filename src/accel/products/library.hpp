// Torch's private operators for weights in the layout of its CPU library. Only for this directory.
#pragma once

#include "accel/products/packed_weights.hpp"

namespace habana_mp::accel {

inline constexpr Py_ssize_t conv_options = 4;

const PackingOperators& operators_of(Packs what) noexcept;

// True if the library has a packed form of the weight for such calls.
bool library_packs(const WeightCall& call) noexcept;

// True if torch's own function uses its CPU library in this thread, and nothing else decides the precision of its
// result: the library is enabled, and torch's autocast is off.
bool is_in_use() noexcept;

// The functions below return null with an exception set if the operator fails, and null with no exception set if it was
// removed meanwhile.

// Returns the packed form of a cast for such calls.
Owned pack(PyObject* cast, const WeightCall& call);
Owned call_packed(const WeightCall& call, PyObject* packed);
// Calls the torch function. The weight is in the lower precision.
Owned call_plain(const WeightCall& call);

}  // namespace habana_mp::accel

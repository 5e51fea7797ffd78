// Torch's private operators for weights in the layout of its CPU library. Only for this directory.
#pragma once

#include "accel/packed/packed.hpp"

namespace habana_mp::accel {

inline constexpr Py_ssize_t conv_options = 4;

const PackingOperators& operators_of(Packs what) noexcept;

// True if the library has a packed form of the weight for such calls.
bool library_packs(const PackedCall& call) noexcept;

// True if torch's own function uses its CPU library in this thread, and nothing else decides the precision of its
// result: the library is enabled, and torch's autocast is off.
bool is_in_use() noexcept;

// The functions below return null with an exception set if the operator fails, and null with no exception set if it was
// removed meanwhile.

// Returns the packed form of a cast for such calls.
Owned pack(PyObject* cast, const PackedCall& call);
Owned call_packed(const PackedCall& call, PyObject* packed);
// Calls the torch function with a cast of the weight. If the call was written with a view of the weight, passes the
// same view of the cast.
Owned call_plain(const PackedCall& call, PyObject* cast);

}  // namespace habana_mp::accel

// Torch's private operators for weights in its CPU library's layout. For this room only.
#pragma once

#include "accel/packed/packed.hpp"

namespace habana_mp::accel {

inline constexpr Py_ssize_t conv_options = 4;

const PackingOperators& operators_of(Packs what) noexcept;

// Is there a packed form of the library's for the weight of such calls?
bool library_packs(const PackedCall& call) noexcept;

// Does torch's own function use its CPU library in this thread, and has nothing else a say in the precision of what it
// gives? Neither is the library switched off nor torch's autocast on.
bool is_in_use() noexcept;

// All of them return null where the operator fails, with its exception, or was taken away meanwhile, without one.

// The packed form of a cast for such calls.
Owned pack(PyObject* cast, const PackedCall& call);
Owned call_packed(const PackedCall& call, PyObject* packed);
// Torch's own function, with a cast of the weight: as the call was written, of the weight's view where it has one.
Owned call_plain(const PackedCall& call, PyObject* cast);

}  // namespace habana_mp::accel

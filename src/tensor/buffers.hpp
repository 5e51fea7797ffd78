// Buffers for casts of activations in calls that autograd does not track. The operation reads the cast and releases it,
// so the next call's cast can use the same memory: it is warm, and nothing is allocated.
#pragma once

#include "tensor/cast.hpp"

namespace habana_mp::tensor {

// As `cast`, for an input of an operation whose results share no memory with it. If it sets `transient`, the caller
// passes the result to `give_back` after the operation.
Owned cast_transient(PyObject* tensor, Kind from, Kind to, CastResult& seen, bool& transient);

// Returns a contiguous copy of a plain CPU tensor that only the caller needs to see, without the graph. The caller
// passes it to `give_back`. Returns null, with no exception set, if that is not possible.
Owned copy_in_rows(PyObject* tensor, Kind kind);

// Takes over the reference. The tensor is reused if nothing else holds it or its memory.
void give_back(PyObject* cast) noexcept;

std::size_t buffer_count() noexcept;
void forget_buffers() noexcept;

}  // namespace habana_mp::tensor

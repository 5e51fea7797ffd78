// Buffers for casts of activations in calls that autograd does not track. The operation reads the cast and releases it,
// so the next call's cast can use the same memory: it is warm, and nothing is allocated.
#pragma once

#include "tensor/cast.hpp"

namespace habana_mp::accel {

// As `cast`, for an input of an operation whose results share no memory with it. If it sets `transient`, the caller
// passes the result to `give_back` after the operation.
Owned cast_transient(PyObject* tensor, Kind from, Kind to, tensor::CastResult& seen, bool& transient);

// True if this CPU tensor has more than two dimensions, and its rows are not at equal distances in memory. Torch
// respects the strides of dimensions of one element when it multiplies, but not when it adds a bias in the same
// operation.
bool has_uneven_rows(PyObject* tensor, bool heeds_single_elements) noexcept;

// Returns a contiguous cast or copy of such a tensor, if only the caller needs to see it. The caller passes it to
// `give_back`. Returns null, with no exception set, if that is not possible.
Owned cast_in_rows(PyObject* tensor, Kind from, Kind to, tensor::CastResult& seen);

// Returns a buffer of this kind with the layout of this view. The caller passes it to `give_back`. Returns null, with
// no exception set, if no such buffer is free.
Owned borrow_buffer(const DLTensor& wanted, Kind kind) noexcept;

// Takes over the reference. The tensor is reused if nothing else holds it or its memory.
void give_back(PyObject* cast) noexcept;

std::size_t buffer_count() noexcept;
void forget_buffers() noexcept;

}  // namespace habana_mp::accel

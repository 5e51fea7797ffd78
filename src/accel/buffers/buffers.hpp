// Casts of activations where nothing is recorded: an operation reads them and lets go of them, so the next call's can
// be written into the same memory. It is warm, and nothing has to be allocated.
#pragma once

#include "tensor/cast.hpp"

namespace habana_mp::accel {

// As `cast`, for an input of an operation whose results share no memory with it. Where `transient` is set, what it
// returns goes to `give_back` when the operation is over.
Owned cast_transient(PyObject* tensor, Kind from, Kind to, tensor::CastResult& seen, bool& transient);

// Do the rows of this tensor of more than two dimensions on the CPU not lie at one distance from each other? Torch
// heeds the strides of dimensions of one element where it multiplies, but not where it adds a bias in the same
// operation.
bool has_uneven_rows(PyObject* tensor, bool heeds_single_elements) noexcept;

// A cast or a copy of such a tensor, contiguous, where nobody has to see it: goes to `give_back`. Null, without an
// exception, where that is not possible.
Owned cast_in_rows(PyObject* tensor, Kind from, Kind to, tensor::CastResult& seen);

// A buffer of this kind that lies as this view: it goes to `give_back`, too. Null where there is none.
Owned borrow_buffer(const DLTensor& wanted, Kind kind) noexcept;

// Takes the reference. The tensor is used again if nobody else holds it or its memory.
void give_back(PyObject* cast) noexcept;

std::size_t buffer_count() noexcept;
void forget_buffers() noexcept;

}  // namespace habana_mp::accel

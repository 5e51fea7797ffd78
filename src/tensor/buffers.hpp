// Casts of activations where nothing is recorded: an operation reads them and lets go of them, so the next call's can
// be written into the same memory. It is warm, and nothing has to be allocated.
#pragma once

#include "tensor/cast.hpp"

namespace habana_mp::tensor {

// As `cast`, for an input of an operation whose results share no memory with it. Where `for_now` is set, what it
// returns goes to `give_back` when the operation is over.
PyObject* cast_for_now(PyObject* tensor, Kind from, Kind to, CastResult& seen, bool& for_now);

// A buffer of this kind that lies as this view: it goes to `give_back`, too. Null where there is none.
PyObject* borrow_buffer(const DLTensor& wanted, Kind kind) noexcept;

// Takes the reference. The tensor is used again if nobody else holds it or its memory.
void give_back(PyObject* cast) noexcept;

std::size_t buffer_count() noexcept;
void forget_buffers() noexcept;

}  // namespace habana_mp::tensor

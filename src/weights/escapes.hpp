// Taps the torch functions through which code can write to a weight without changing its version.
#pragma once

#include "owned.hpp"

namespace habana_mp::weights {

// Tap and untap two methods of Tensor. They are tapped before the first target is patched, and until no target is
// patched any more. A list may also name `view`. If the lists apply, `numpy` of a bfloat16 tensor returns float32.
void tap_view_and_numpy(bool (*lists_apply)());
void untap_view_and_numpy() noexcept;

// Taps the methods in this dict from names to methods, None for one that this torch lacks. Returns false with a
// Python exception set, and changes nothing, if one of them is not as expected.
bool tap_escapes(PyObject* methods);
void untap_escapes() noexcept;

// The casts of this tensor are made again, if it is a weight: code gets access to its memory, or writes to it.
void tensor_escapes(PyObject* tensor) noexcept;
// The same, for as long as `alias` lives: it gets the tensor's memory, and has a version counter of its own.
void tensor_is_aliased(PyObject* tensor, PyObject* alias);
// The same, for as long as NumPy or DLPack may have its memory.
void tensor_is_lent(PyObject* tensor) noexcept;
// The same as `tensor_escapes` for the arguments of a function that writes without a new version, and for what lists
// and dicts among them hold, since torch accepts these. If an argument may hold any tensor, all weights are cast again.
void arguments_escape(PyObject* const* values, Py_ssize_t count) noexcept;

}  // namespace habana_mp::weights

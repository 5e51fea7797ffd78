// Torch operators, called directly in torch's library. This takes a fifth of the time of a call through Python.
#pragma once

#include <cstdint>
#include <span>

#include "host/inside.hpp"
#include "host/reader.hpp"

namespace habana_mp::host {

// Finds the operators. Call it after bind_reader.
void bind_aten();

// aten::_unsafe_view. Returns a tensor that uses this plain tensor's memory and that autograd takes for a new tensor,
// not for a view. Null without an exception if the operator was not found or fails.
Owned unsafe_view(PyObject* tensor, std::span<const std::int64_t> sizes) noexcept;

// Returns the sizes as a Python tuple; null without an exception when memory runs out.
Owned as_tuple(std::span<const std::int64_t> sizes) noexcept;

// aten::new_empty. Returns a new contiguous tensor of this floating kind, on this plain tensor's device. Calls the
// Python method if the operator was not found. Null on failure; no exception is set, except for an interrupt.
Owned new_empty(PyObject* tensor, std::span<const std::int64_t> sizes, Kind kind) noexcept;

// Tensor.as_strided. Returns a view of this plain tensor that begins `begin` elements after the start of its storage.
// Null on failure; no exception is set, except for an interrupt.
Owned as_strided(PyObject* tensor, const Geometry& geometry, std::int64_t begin) noexcept;

}  // namespace habana_mp::host

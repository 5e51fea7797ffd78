// Operators of torch's, called where they lie in its library: a fifth of what they take through Python.
#pragma once

#include <cstdint>
#include <span>

#include "host/inside.hpp"
#include "host/reader.hpp"

namespace habana_mp::host {

// Finds them. To be called after bind_reader.
void bind_aten();

// aten::_unsafe_view: a tensor that autograd takes for a new one, made of this plain tensor without a copy. Null
// without an exception where the operator was not found or fails.
Owned unsafe_view(PyObject* tensor, std::span<const std::int64_t> sizes) noexcept;

// Sizes as Python has them. Null where there is no memory, without an exception.
Owned as_tuple(std::span<const std::int64_t> sizes) noexcept;

// aten::new_empty: a new contiguous tensor, of this plain tensor's dtype and device; through Python where the
// operator was not found. Null where it fails, without an exception but an interrupt's.
Owned new_empty(PyObject* tensor, std::span<const std::int64_t> sizes) noexcept;

// Tensor.as_strided: a view of this plain tensor, so many elements behind its storage's beginning. Null where it
// fails, without an exception but an interrupt's.
Owned as_strided(PyObject* tensor, const Geometry& geometry, std::int64_t begin) noexcept;

}  // namespace habana_mp::host

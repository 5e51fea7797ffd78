// aten::_unsafe_view, called where it lies in torch's library: a fifth of what torch.ops takes for it.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/reader.hpp"

namespace habana_mp::tensor {

// Finds the function. To be called after bind_reader.
void bind_unsafe_view() noexcept;

// A tensor that autograd takes for a new one, made of this plain tensor without a copy. A new reference; null without
// an exception where the function is not there or fails.
PyObject* unsafe_view(PyObject* tensor, const std::vector<std::int64_t>& sizes) noexcept;

}  // namespace habana_mp::tensor

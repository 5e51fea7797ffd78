// Making a cast of a tensor.
#pragma once

#include <cstdint>

#include "kernels/types.hpp"
#include "tensor/blocks.hpp"
#include "tensor/view.hpp"

namespace habana_mp::tensor {

// What was seen while casting; sums over the casts of one call.
struct CastResult {
  std::uint64_t bytes = 0;  // the size of the new tensors
  bool recorded = false;    // autograd records one of them, and so what is computed of it
  bool by_sparse = false;   // given: they are made for a call with a sparse tensor, where gradients may change layouts
};

// A new reference to `tensor` in the precision `to` (f32, bf16 or f16), or null with a Python exception set. Autograd,
// tracing and dispatch modes see the cast; only where none of them is at work is it made by our own kernels.
PyObject* cast(PyObject* tensor, Kind from, Kind to, CastResult& seen);

// What makes a cast in autograd's graph whose memory is large, or whose gradient may have another layout: called with
// the tensor and a dtype. Held; null for none.
void set_recorded_cast(PyObject* function) noexcept;

// Is a cast of so many values, or its gradient, large enough for a block of its own?
inline bool is_cast_to_block(std::int64_t count) noexcept {
  return is_block(static_cast<std::uint64_t>(count) * sizeof(float));
}

// A cast of a plain tensor that nobody has to see, in such a block: a new reference. Null, without an exception, where
// that is not possible.
PyObject* cast_in_block(PyObject* tensor, Kind to) noexcept;

// Is a cast of this tensor recorded, and there is nothing about it but the graph?
bool is_cast_in_graph(PyObject* tensor) noexcept;

// Would anybody but the caller have to see a cast of this tensor?
bool is_watched(PyObject* tensor, CastResult& seen);

// Casts values in memory. Many of them by torch's number of threads and without the GIL.
void convert(const void* source, Kind from, void* target, Kind to, std::int64_t count);

// Does torch record operations, or ask what they give, by nobody's modes but its own? It may record one as a whole, and
// what was decided about the products inside is lost.
bool is_recorded_by_torch() noexcept;

// Is somebody at work in this thread who sees each operation: a tracer, a dispatch mode, a transform of torch.func?
bool is_intercepted() noexcept;

// Or forward-mode AD? Then a cast must not be made past torch.
bool is_traced() noexcept;

// Does torch.func or forward-mode AD work out gradients by formulas of their own?
bool is_transformed() noexcept;

bool grad_is_enabled() noexcept;

// For kernels that work for long: how many threads torch uses.
unsigned torch_threads() noexcept;

// The type as the kernels name it.
kernels::Float float_of(Kind kind) noexcept;

// What so many values of a kind take in memory.
std::uint64_t bytes_as(Kind kind, std::int64_t count) noexcept;

// Is a function mode at work in this thread?
bool function_mode_is_on() noexcept;

// Is there a tensor of a class of its own among the arguments?
bool holds_subclass(PyObject* const* values, Py_ssize_t count) noexcept;

// Will a subclass's __torch_function__ get a call with these arguments in torch's stead?
bool has_torch_function(PyObject* const* values, Py_ssize_t count) noexcept;

// As cast, but finite values beyond the range of `to` become its largest finite value instead of an infinity (rule 9).
PyObject* cast_saturated(PyObject* tensor, Kind from, Kind to, CastResult& seen);

// Tensor.add_ of two plain tensors. False with a Python exception set.
bool add_in_place(PyObject* tensor, PyObject* other) noexcept;

bool has_no_dimensions(PyObject* tensor) noexcept;

// Of a plain tensor.
bool requires_grad(PyObject* tensor) noexcept;

// The largest finite value of a precision.
double largest(Kind kind) noexcept;

// Is the tensor on another device than the CPU? False where that cannot be read.
bool is_off_cpu(PyObject* tensor) noexcept;

}  // namespace habana_mp::tensor

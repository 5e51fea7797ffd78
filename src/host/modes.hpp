// The state of torch in this thread: gradients, and the modes, tracers and transforms that see each operation.
#pragma once

#include <cstdint>
#include <optional>

#include "host/reader.hpp"

namespace habana_mp::host {

// Finds the fast functions that read this state. Without them torch's Python functions are called. Call it after
// bind_reader.
void bind_modes();

bool grad_is_enabled() noexcept;

// True if torch's own modes, and no others, record operations or infer their results. torch may record an operation as
// a whole, which loses the decisions about the products inside.
bool is_recorded_by_torch() noexcept;

// True if a tracer, a dispatch mode or a transform of torch.func sees each operation in this thread.
bool is_intercepted() noexcept;

// True if operations are intercepted, or forward-mode AD is active. A cast must then be made by torch.
bool is_traced() noexcept;

// True if torch.func or forward-mode AD computes gradients by its own formulas.
bool is_transformed() noexcept;

// True if a function mode is active in this thread.
bool function_mode_is_on() noexcept;

// Returns the number of threads that torch uses, for kernels that run long.
unsigned torch_threads() noexcept;

// True if this thread computes gradients. False if that is unknown.
bool gradients_are_worked_out() noexcept;

// Returns the sequence number of the next operation that autograd tracks in this thread; 0 if it is unknown.
std::uint64_t next_sequence_number() noexcept;
// Returns the sequence number of the operation whose gradient is being computed; 0 if it is unknown.
std::uint64_t sequence_number_of_gradient() noexcept;

// Returns the number of the stream on which this thread's next operation on a device of torch's accelerator runs.
// Nullopt if it cannot be told.
std::optional<std::int64_t> current_stream(int device) noexcept;

// True if an argument, or the first item of a list or tuple, is an instance of a tensor subclass.
bool holds_subclass(PyObject* const* values, Py_ssize_t count) noexcept;

// True if a subclass's __torch_function__ handles a call with these arguments. Throws std::bad_alloc when memory runs
// out.
bool has_torch_function(PyObject* const* values, Py_ssize_t count);

// `tensor` must be a plain tensor here and in the next function.
bool requires_grad(PyObject* tensor) noexcept;
// True if the tensor has the negative bit, which a view of its memory does not show.
bool counts_as_negated(PyObject* tensor) noexcept;

// True if a tensor of any class has no dimensions. Throws std::bad_alloc when memory runs out.
bool has_no_dimensions(PyObject* tensor);
// True if the tensor is on another device than the CPU. False if its device cannot be read.
bool is_off_cpu(PyObject* tensor) noexcept;

}  // namespace habana_mp::host

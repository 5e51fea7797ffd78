// What is going on in torch in this thread: who records, traces or intercepts what is called.
#pragma once

#include "host/reader.hpp"

namespace habana_mp::host {

// Finds the quick ways to ask. Without it torch's Python functions are asked. To be called after bind_reader.
void bind_modes();

bool grad_is_enabled() noexcept;

// Does torch record operations, or ask what they give, by nobody's modes but its own? It may record one as a whole, and
// what was decided about the products inside is lost.
bool is_recorded_by_torch() noexcept;

// Is somebody at work in this thread who sees each operation: a tracer, a dispatch mode, a transform of torch.func?
bool is_intercepted() noexcept;

// Or forward-mode AD? Then a cast must not be made past torch.
bool is_traced() noexcept;

// Does torch.func or forward-mode AD work out gradients by formulas of their own?
bool is_transformed() noexcept;

// Is a function mode at work in this thread?
bool function_mode_is_on() noexcept;

// Has the user left torch's CPU library, oneDNN, switched on?
bool onednn_is_enabled() noexcept;

// For kernels that work for long: how many threads torch uses.
unsigned torch_threads() noexcept;

// Does this thread work out gradients? False where torch does not tell.
bool gradients_are_worked_out() noexcept;

// The number that the next operation which this thread records gets; 0 where torch does not tell.
std::uint64_t next_sequence_number() noexcept;
// The number of the recorded operation whose gradient is worked out now; 0 where that cannot be told.
std::uint64_t sequence_number_of_gradient() noexcept;

// Is there a tensor of a class of its own among the arguments?
bool holds_subclass(PyObject* const* values, Py_ssize_t count) noexcept;

// Will a subclass's __torch_function__ get a call with these arguments in torch's stead?
bool has_torch_function(PyObject* const* values, Py_ssize_t count);

// Of a plain tensor.
bool requires_grad(PyObject* tensor) noexcept;
// Does it count as negated, by a bit that a view of its memory does not tell?
bool counts_as_negated(PyObject* tensor) noexcept;

// Of any tensor.
bool has_no_dimensions(PyObject* tensor);
// Is it on another device than the CPU? False where that cannot be read.
bool is_off_cpu(PyObject* tensor) noexcept;

}  // namespace habana_mp::host

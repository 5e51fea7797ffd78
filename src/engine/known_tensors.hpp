// Rule 11 depends on the origin of some tensors: results of lowered calls, and conversions to a lower precision. Tables
// hold them by their memory, so their aliases are found too.
#pragma once

#include <cstdint>

#include "engine/facts.hpp"

namespace habana_mp::engine {

// ---- lowered results ------------------------------------------------------------------------------------------------

// Remembers the result of a call whose inputs were lowered: a tensor or a tuple of tensors. Ignores results that
// autograd tracks, since their graph shows their origin. Returns false with an exception set when memory runs out.
bool remember_lowered(PyObject* result);
// True for a tensor in a lower precision that is a remembered living result or shares memory with one.
bool was_lowered(PyObject* tensor) noexcept;

// True for a tensor in a lower precision that autograd tracks, if casts are made here: its graph then shows the origin
// of its values.
bool may_be_lowered_in_graph(PyObject* tensor);

// The calls that wrote values in lower precision into a weight in float32.
extern std::uint64_t lower_updates;
// Counts an in-place call of that kind, as in the step of an optimizer that is no torch.optim's and that the lists
// reach.
void note_update_of_weight(const Arguments& arguments);
// Counts the assignment of a lower value, or of one that was computed from lower values, to the data of a weight.
void note_data_of_weight(PyObject* weight, PyObject* value) noexcept;

// Remembers the result if this call lowered its inputs, or if it sums inputs in float32 that an earlier call lowered.
// If autograd tracks the result, this calls the region's function with it instead. Returns false with an exception set
// if that function raised or memory ran out.
bool remember_if_lowered(const Facts& facts, const rules::Plan& plan, const CastContext& context, PyObject* result);

// ---- conversions ----------------------------------------------------------------------------------------------------

// Remembers the result of a float32 tensor's own conversion method if it is in a lower precision and autograd does not
// track it. Returns false with an exception set when memory runs out.
bool remember_converted(PyObject* tensor, PyObject* result);
// True for a remembered conversion, and for a tensor that shares memory with one.
bool was_converted(PyObject* tensor) noexcept;

// ---- both -----------------------------------------------------------------------------------------------------------

// Drops the weak references to this tensor.
void forget_known(PyObject* tensor) noexcept;
// Drops all weak references.
void forget_all_known() noexcept;

}  // namespace habana_mp::engine

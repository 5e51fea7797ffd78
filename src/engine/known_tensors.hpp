// Rule 11 must know where some tensors come from: results of lowered calls, conversions to a lower precision, and
// tensors of modules. Tables hold them by their memory, so their aliases are found too.
#pragma once

#include <Python.h>

namespace habana_mp::engine {

// ---- lowered results ------------------------------------------------------------------------------------------------

// Notes the result of a call whose inputs were lowered: a tensor, or a tuple of some. Results that autograd tracks are
// left out, since their graph shows where they come from. False with an exception set where memory ran out.
bool remember_lowered(PyObject* result);
// True for a tensor in a lower precision if a living result that was noted has its memory: the result itself, or a
// tensor that shares it.
bool was_lowered(PyObject* tensor) noexcept;

// True for a tensor in a lower precision that autograd tracks, where casts are made: its graph then shows where its
// values come from.
bool may_be_lowered_in_graph(PyObject* tensor);

// ---- conversions ----------------------------------------------------------------------------------------------------

// Notes what a float32 tensor was converted to by its own method, if that is in a lower precision and autograd does not
// track it. False with an exception set where memory ran out.
bool remember_converted(PyObject* tensor, PyObject* result);
// True for a tensor that was converted so, or one that shares its memory.
bool was_converted(PyObject* tensor) noexcept;

// ---- tensors of modules ---------------------------------------------------------------------------------------------

// From now on tensors of modules are noted, or none are, and those that were are forgotten.
void follow_module_tensors(bool on) noexcept;
// Set while they are noted.
extern bool module_tensors_are_followed;
// Notes a Parameter, a buffer, a tensor that is an attribute of a module, or what was computed from such alone. Other
// objects are passed over. False with an exception set where memory ran out.
bool remember_module_tensor(PyObject* object);
// True for a Parameter, and for a living tensor that was noted or that shares memory with one. To be asked of tensors.
bool is_module_tensor(PyObject* tensor) noexcept;

// ---- lower values that a module keeps -------------------------------------------------------------------------------

// Notes a value in a lower precision that became an attribute of a module while casts were made; and what elementwise
// arithmetic made of such a value, or of its result. False with an exception set where memory ran out.
bool remember_kept(PyObject* tensor);
bool remember_computed_from_kept(PyObject* tensor);
// Set once a value was noted.
extern bool lower_values_are_kept;
// True for such a value or result, and for a tensor that shares memory with one.
bool is_kept_or_computed_from_kept(PyObject* tensor) noexcept;
// True for such a result, and for a tensor that shares memory with one.
bool was_computed_from_kept(PyObject* tensor) noexcept;

// ---- all of them ----------------------------------------------------------------------------------------------------

// Drops the weak references to this tensor.
void forget_known(PyObject* tensor) noexcept;
// Drops all weak references.
void forget_all_known() noexcept;

}  // namespace habana_mp::engine

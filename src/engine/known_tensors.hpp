// Rule 11 depends on the origin of some tensors: results of lowered calls, conversions to a lower precision, and
// tensors of modules. Tables hold them by their memory, so their aliases are found too.
#pragma once

#include <Python.h>

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

// ---- conversions ----------------------------------------------------------------------------------------------------

// Remembers the result of a float32 tensor's own conversion method if it is in a lower precision and autograd does not
// track it. Returns false with an exception set when memory runs out.
bool remember_converted(PyObject* tensor, PyObject* result);
// True for a remembered conversion, and for a tensor that shares memory with one.
bool was_converted(PyObject* tensor) noexcept;

// ---- tensors of modules ---------------------------------------------------------------------------------------------

// Starts to remember tensors of modules, or stops and forgets all of them.
void follow_module_tensors(bool on) noexcept;
// True while tensors of modules are remembered.
extern bool module_tensors_are_followed;
// True for a floating-point tensor and for one of whole numbers, which arithmetic makes floating. Truth values and
// bytes are masks in most cases.
bool may_be_state(PyObject* object) noexcept;
// Remembers a Parameter, a buffer, a tensor attribute of a module, or a tensor computed from such tensors alone.
// Ignores other objects. Returns false with an exception set when memory runs out.
bool remember_module_tensor(PyObject* object);
// The same for a tensor that was read as an attribute of a module, unless its memory is known.
bool remember_module_tensor_that_is_read(PyObject* object);
// True for a Parameter, and for a tensor that is a remembered living tensor or shares memory with one. `tensor` must be
// a tensor.
bool is_module_tensor(PyObject* tensor) noexcept;

// ---- lower values that a module keeps -------------------------------------------------------------------------------

// Remember a value in a lower precision that became an attribute of a module while casts were made, and the result of
// elementwise arithmetic on such a value or result. Both return false with an exception set when memory runs out.
bool remember_module_value(PyObject* tensor);
bool remember_computed_from_module_value(PyObject* tensor);
// True once such a value was remembered.
extern bool lower_module_values_exist;
// True for such a value or result, and for a tensor that shares memory with one.
bool is_module_value_or_computed_from_one(PyObject* tensor) noexcept;
// True for such a result, and for a tensor that shares memory with one.
bool was_computed_from_module_value(PyObject* tensor) noexcept;

// ---- all of them ----------------------------------------------------------------------------------------------------

// Drops the weak references to this tensor.
void forget_known(PyObject* tensor) noexcept;
// Drops all weak references.
void forget_all_known() noexcept;

}  // namespace habana_mp::engine

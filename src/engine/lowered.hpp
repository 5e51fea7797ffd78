// Tells which tensors our casts lowered. Rule 11 asks so where a tensor becomes a part of a module.
#pragma once

#include <Python.h>

namespace habana_mp::engine {

// Notes the result of a call whose inputs were lowered: a tensor, or a tuple of some. Results that autograd tracks are
// left out, since their graph shows where they come from. False with an exception set where memory ran out.
bool remember_lowered(PyObject* result);
// True for a tensor in a lower precision if a living result that was noted has its memory: the result itself, or a
// tensor that shares it.
bool was_lowered(PyObject* tensor) noexcept;
// Drops the weak references to this tensor.
void forget_lowered(PyObject* tensor) noexcept;
// Drops all weak references.
void forget_all_lowered() noexcept;

// True for a tensor in a lower precision that autograd tracks, where casts are made: its graph then shows where its
// values come from.
bool may_be_lowered_in_graph(PyObject* tensor);

}  // namespace habana_mp::engine

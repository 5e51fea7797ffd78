// What our casts lowered not long ago: asked where somebody puts a tensor into a module.
#pragma once

#include <Python.h>

namespace habana_mp::engine {

// The result of a call whose inputs were lowered. Results that autograd recorded are passed over.
void remember_lowered(PyObject* result);
// Was this object such a result, not long ago in this process?
bool was_lowered(PyObject* tensor) noexcept;
// It is held weakly no longer.
void forget_lowered(PyObject* tensor) noexcept;

// Is this a recorded tensor in a lower precision, where casts are made? Then its graph tells where its values come
// from.
bool may_be_lowered_in_graph(PyObject* tensor) noexcept;

}  // namespace habana_mp::engine

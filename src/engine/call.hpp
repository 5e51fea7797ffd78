// The way of one call: read the arguments, decide, cast what must be cast, call the original, count, log.
#pragma once

#include "engine/state.hpp"
#include "engine/target.hpp"

namespace habana_mp::engine {

// The arguments of one call, as vectorcall hands them over. For a method the first one is the tensor itself.
struct Arguments {
  PyObject* const* values;
  Py_ssize_t positional;
  PyObject* keywords;  // tuple of names, or null

  Py_ssize_t keyword_count() const { return keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords); }
  Py_ssize_t count() const { return positional + keyword_count(); }
};

// Answers a call of a target. A new reference, or null with the Python exception that the original would raise.
PyObject* answer(Target& target, const Arguments& arguments);

// Was it decided already what this operator of torch.ops casts: when the code was compiled, or when it was called from
// outside of itself?
inline bool is_decided(const Target& target) {
  const ThreadState& state = thread_state;
  return state.compiled_runs != 0 ||
         (state.running_operator != nullptr && state.running_operator->operation == target.operation);
}

// An operator of torch.ops that was decided already, or will be when it is called again.
PyObject* call_operator(Target& target, const Arguments& arguments);

// The original, with nothing done.
PyObject* call_original(Target& target, const Arguments& arguments);

// A C function that takes METH_VARARGS | METH_KEYWORDS.
PyObject* call_with_values(PyCFunction function, PyObject* self, const Arguments& arguments);

// `tensor[key] = value`, by the in-place rule. The original's result.
int answer_assignment(Target& target, PyObject* tensor, PyObject* key, PyObject* value, objobjargproc original);

// Was this object the result of a call that our casts lowered, not long ago in this process?
// Results that autograd recorded are not remembered.
bool was_lowered(PyObject* tensor) noexcept;
// It is held weakly no longer.
void forget_lowered(PyObject* tensor) noexcept;

// Is this a recorded tensor in a lower precision, where casts are made? Then its graph tells where its values come
// from.
bool may_be_lowered_in_graph(PyObject* tensor) noexcept;

}  // namespace habana_mp::engine

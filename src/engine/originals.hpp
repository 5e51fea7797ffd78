// Calls of the original functions. Each returns a new reference, or null with an exception set.
#pragma once

#include "engine/arguments.hpp"
#include "engine/target.hpp"

namespace habana_mp::engine {

// Calls the original with these arguments.
PyObject* call_original(Target& target, const Arguments& arguments);

// Like call_original, for a call that no function mode sees. If a method has an equivalent function, calls that: a
// function's parser holds its tensors in C++ during the call, while a method's parser does not hold the tensor that the
// method belongs to.
PyObject* call_without_modes(Target& target, const Arguments& arguments);

// Calls an operator of torch.ops that is already decided, or that will be decided when torch calls it again.
PyObject* call_operator(Target& target, const Arguments& arguments);

// Calls the original of a call that is decided later, when torch calls the target again. So an operator of torch.ops
// does not count as running.
PyObject* call_deferred(Target& target, const Arguments& arguments);

// Calls a Python function as it is.
PyObject* call_python(Target& target, const Arguments& arguments);

}  // namespace habana_mp::engine

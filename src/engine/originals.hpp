// The call of what was there before us.
#pragma once

#include "engine/arguments.hpp"
#include "engine/target.hpp"

namespace habana_mp::engine {

// The original, with nothing done.
PyObject* call_original(Target& target, const Arguments& arguments);

// As call_original, of a call that no function mode sees. A function's parser holds its tensors in C++ for as long as
// the call takes, a method's does not hold the tensor it belongs to.
PyObject* call_unseen(Target& target, const Arguments& arguments);

// An operator of torch.ops that was decided already, or will be when it is called again.
PyObject* call_operator(Target& target, const Arguments& arguments);

// The original of a call that is decided when it comes back: an operator of torch.ops does not count as running.
PyObject* call_undecided(Target& target, const Arguments& arguments);

// A Python function as it is.
PyObject* call_python(Target& target, const Arguments& arguments);

}  // namespace habana_mp::engine

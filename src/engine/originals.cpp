#include "engine/originals.hpp"

#include <utility>

#include "engine/region.hpp"
#include "engine/state.hpp"
#include "host/reader.hpp"

namespace habana_mp::engine {

// Holds the function during the call, since an installation may exchange it.
PyObject* call_python(Target& target, const Arguments& arguments) {
  const Owned called = Owned::borrowed(target.called.get());
  return PyObject_Vectorcall(called.get(), arguments.values, static_cast<std::size_t>(arguments.positional),
                             arguments.keywords);
}

// Calls a function that decides its own precision: the lists are suspended inside it. torch.compile must know this
// about a user-defined function, whose code it may compile; a torch function is decided as a whole.
static PyObject* call_deciding(Target& target, const Arguments& arguments) {
  ThreadState& state = thread_state;
  if (state.lists_suspended) return call_python(target, arguments);
  if (target.kind == host::CallableKind::composite) {
    state.lists_suspended = true;
    PyObject* result = call_python(target, arguments);
    state.lists_suspended = false;
    return result;
  }
  if (!number_of_suspension()) return nullptr;
  CastState wanted = current_state();
  wanted.lists_suspended = true;
  wanted.suspended_until_tracking = false;
  return in_state(wanted, [&] { return call_python(target, arguments); });
}

PyObject* call_operator(Target& target, const Arguments& arguments) {
  if (target.kind == host::CallableKind::slow_operator) {
    return host::call_with_tuple(target.original, PyCFunction_GET_SELF(target.object.get()), arguments);
  }
  return target.original_slot(target.object.get(), arguments.values, static_cast<std::size_t>(arguments.positional),
                              arguments.keywords);
}

PyObject* call_original(Target& target, const Arguments& arguments) {
  switch (target.kind) {
    case host::CallableKind::function:
      return host::call_with_tuple(target.original, PyCFunction_GET_SELF(target.object.get()), arguments);
    case host::CallableKind::slow_operator:
    case host::CallableKind::fast_operator: {
      ThreadState& state = thread_state;
      const Target* outer = std::exchange(state.running_operator, &target);
      PyObject* result = call_operator(target, arguments);
      state.running_operator = outer;
      return result;
    }
    case host::CallableKind::method:
      return host::call_with_tuple(target.original, arguments.values[0], arguments, 1);
    case host::CallableKind::method_no_arguments:
      return target.original(arguments.values[0], nullptr);
    case host::CallableKind::subscript:
      return target.original_subscript(arguments.values[0], arguments.values[1]);
    case host::CallableKind::assignment:
      if (target.original_assignment(arguments.values[0], arguments.values[1], arguments.values[2]) != 0)
        return nullptr;
      Py_RETURN_NONE;
    default:
      return call_deciding(target, arguments);
  }
}

PyObject* call_without_modes(Target& target, const Arguments& arguments) {
  const bool has_equivalent = target.equivalent && arguments.positional == 2 && arguments.keywords == nullptr &&
                              host::is_plain_tensor(arguments.values[0]) && host::is_plain_tensor(arguments.values[1]);
  if (!has_equivalent) return call_original(target, arguments);
  return host::call_with_tuple(PyCFunction_GET_FUNCTION(target.equivalent.get()),
                               PyCFunction_GET_SELF(target.equivalent.get()), arguments);
}

PyObject* call_deferred(Target& target, const Arguments& arguments) {
  return target.is_operator() ? call_operator(target, arguments) : call_original(target, arguments);
}

}  // namespace habana_mp::engine

#include "engine/originals.hpp"

#include <optional>
#include <utility>

#include "engine/region.hpp"
#include "engine/state.hpp"
#include "errors.hpp"

namespace habana_mp::engine {

namespace {

// The original of a function or method with METH_VARARGS | METH_KEYWORDS; the arguments in the form that it takes.
PyObject* call_with_tuple(PyCFunction original, PyObject* self, const Arguments& arguments, Py_ssize_t skip) {
  PyObject* tuple = PyTuple_New(arguments.positional - skip);
  if (tuple == nullptr) return nullptr;
  for (Py_ssize_t i = skip; i < arguments.positional; ++i) {
    PyTuple_SET_ITEM(tuple, i - skip, Py_NewRef(arguments.values[i]));
  }
  PyObject* dictionary = nullptr;
  const Py_ssize_t keyword_count = arguments.keyword_count();
  if (keyword_count != 0) {
    dictionary = PyDict_New();
    for (Py_ssize_t i = 0; dictionary != nullptr && i < keyword_count; ++i) {
      if (PyDict_SetItem(dictionary, PyTuple_GET_ITEM(arguments.keywords, i),
                         arguments.values[arguments.positional + i]) < 0) {
        Py_CLEAR(dictionary);
      }
    }
    if (dictionary == nullptr) {
      Py_DECREF(tuple);
      return nullptr;
    }
  }
  PyObject* result =
      reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void*>(original))(self, tuple, dictionary);
  Py_DECREF(tuple);
  Py_XDECREF(dictionary);
  return result;
}

}  // namespace

PyObject* call_with_values(PyCFunction function, PyObject* self, const Arguments& arguments) {
  return call_with_tuple(function, self, arguments, 0);
}

// What is called may be exchanged meanwhile, by an installation.
PyObject* call_python(Target& target, const Arguments& arguments) {
  PyObject* called = Py_NewRef(target.called);
  PyObject* result =
      PyObject_Vectorcall(called, arguments.values, static_cast<std::size_t>(arguments.positional), arguments.keywords);
  Py_DECREF(called);
  return result;
}

// A function that decides its own precision: inside of it the lists are silent. torch.compile has to know where that is
// a user's code, which it may compile; torch's own is decided as a whole.
static PyObject* call_deciding(Target& target, const Arguments& arguments) {
  ThreadState& state = thread_state;
  if (state.silent) return call_python(target, arguments);
  if (target.index != no_index) {
    state.silent = true;
    PyObject* result = call_python(target, arguments);
    state.silent = false;
    return result;
  }
  const std::optional<std::size_t> regions = begin_silence();
  if (!regions) return nullptr;
  PyObject* result = call_python(target, arguments);
  HeldError held;
  end_silence(*regions);
  held.restore();
  return result;
}

PyObject* call_operator(Target& target, const Arguments& arguments) {
  if (target.shape == Target::Shape::slow_operator) {
    return call_with_tuple(target.original, PyCFunction_GET_SELF(target.object), arguments, 0);
  }
  return target.original_slot(target.object, arguments.values, static_cast<std::size_t>(arguments.positional),
                              arguments.keywords);
}

PyObject* call_original(Target& target, const Arguments& arguments) {
  switch (target.shape) {
    case Target::Shape::function:
      return call_with_tuple(target.original, PyCFunction_GET_SELF(target.object), arguments, 0);
    case Target::Shape::slow_operator:
    case Target::Shape::fast_operator: {
      ThreadState& state = thread_state;
      const Target* outer = std::exchange(state.running_operator, &target);
      PyObject* result = call_operator(target, arguments);
      state.running_operator = outer;
      return result;
    }
    case Target::Shape::method:
      return call_with_tuple(target.original, arguments.values[0], arguments, 1);
    case Target::Shape::method_no_arguments:
      return target.original(arguments.values[0], nullptr);
    default:
      return call_deciding(target, arguments);
  }
}

PyObject* call_unseen(Target& target, const Arguments& arguments) {
  const bool has_twin = target.twin != nullptr && arguments.positional == 2 && arguments.keywords == nullptr &&
                        tensor::is_plain_tensor(arguments.values[0]) && tensor::is_plain_tensor(arguments.values[1]);
  if (!has_twin) return call_original(target, arguments);
  return call_with_values(PyCFunction_GET_FUNCTION(target.twin), PyCFunction_GET_SELF(target.twin), arguments);
}

PyObject* call_undecided(Target& target, const Arguments& arguments) {
  return target.is_operator() ? call_operator(target, arguments) : call_original(target, arguments);
}

}  // namespace habana_mp::engine

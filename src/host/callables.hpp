// Replaces torch's C functions with stubs. Builtins and method descriptors get a stub in their vectorcall slot, methods
// also in their definition. For `tensor[key]` the stub is in the slots of the type. The objects keep their identity.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "from_c.hpp"
#include "owned.hpp"

namespace habana_mp::host {

// The arguments of one call in vectorcall's form. The first argument of a method is the tensor.
struct Arguments {
  PyObject* const* values;
  Py_ssize_t positional;
  PyObject* keywords;  // tuple of names, or null

  Py_ssize_t keyword_count() const { return keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords); }
  Py_ssize_t count() const { return positional + keyword_count(); }
};

// Calls a C function that takes METH_VARARGS | METH_KEYWORDS, without the first `skip` arguments. Returns its result;
// null with an exception set on failure.
PyObject* call_with_tuple(PyCFunction function, PyObject* self, const Arguments& arguments, Py_ssize_t skip = 0);

enum class CallableKind : std::uint8_t {
  function,             // builtin function with METH_VARARGS | METH_KEYWORDS
  slow_operator,        // operator of torch.ops with the same flags, in older releases (until 2.10, at least)
  fast_operator,        // operator of torch.ops: a builtin with METH_FASTCALL | METH_KEYWORDS, or another callable
  method,               // method of Tensor with METH_VARARGS | METH_KEYWORDS
  method_no_arguments,  // method of Tensor with METH_NOARGS
  assignment,           // Tensor.__setitem__: a type slot, not a callable
  subscript,            // Tensor.__getitem__: also a type slot
  composite,            // operation that torch implements in Python
  user_function,        // user-defined function, called through the core (hmp.op_wrap)
};

// The functions that replace an object's own while it is patched. Each kind uses one or two of them.
struct Stubs {
  FromC<vectorcallfunc> vectorcall = {};
  FromC<PyCFunctionWithKeywords> method = {};
  FromC<PyCFunction> method_no_arguments = {};
  FromC<objobjargproc> assignment = {};
  FromC<binaryfunc> subscript = {};
};

struct Callable {
  CallableKind kind = CallableKind::function;
  PyCFunction original = nullptr;
  Owned object;  // the builtin, descriptor or Python function
  vectorcallfunc original_slot = nullptr;
  objobjargproc original_assignment = nullptr;
  binaryfunc original_subscript = nullptr;
  PyMethodDef* definition = nullptr;   // the object's original definition
  PyMethodDef definition_with_slot{};  // only for fast_operator: keeps the interpreter from bypassing the slot

  bool is_method() const { return kind == CallableKind::method || kind == CallableKind::method_no_arguments; }
  bool is_python() const { return kind == CallableKind::composite || kind == CallableKind::user_function; }
  bool is_operator() const { return kind == CallableKind::slow_operator || kind == CallableKind::fast_operator; }
};

// Finds the shape of an object that can be patched. False with an exception set if it cannot.
bool find_kind(PyObject* object, CallableKind& kind);

// True if the calling convention of the object is supported. Nothing else is checked.
bool can_cover(PyObject* object) noexcept;

// Tensor and the classes that derive from it, which have copies of its slots.
using TensorClasses = std::vector<Owned>;

// Returns nullopt with an exception set when memory runs out.
std::optional<TensorClasses> find_tensor_classes();

// These functions cannot fail. No other Python code may run after `classes` were found.
void put_in(Callable& callable, const Stubs& stubs, const TensorClasses& classes) noexcept;
void take_out(Callable& callable, const Stubs& stubs, const TensorClasses& classes) noexcept;

// Returns a new builtin with the same C function and without a stub. `covered` describes the builtin if it is patched,
// and is null otherwise. Null with an exception set on failure.
Owned unpatched_copy(PyObject* builtin, const Callable* covered);

// Sets an exception that asks the user to report this object. Returns false.
bool refuse(PyObject* object, const char* why);

}  // namespace habana_mp::host

// What Python calls of torch's C code, and how a stub of ours is put in its place: builtins and method descriptors are
// answered from their vectorcall slot, methods also from their definition, `tensor[key]` from the type's slots. The
// objects stay what they are.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "from_c.hpp"
#include "host/memory_map.hpp"
#include "owned.hpp"

namespace habana_mp::host {

// The arguments of one call, as vectorcall hands them over. For a method the first one is the tensor itself.
struct Arguments {
  PyObject* const* values;
  Py_ssize_t positional;
  PyObject* keywords;  // tuple of names, or null

  Py_ssize_t keyword_count() const { return keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords); }
  Py_ssize_t count() const { return positional + keyword_count(); }
};

// Calls a C function that takes METH_VARARGS | METH_KEYWORDS; the first `skip` arguments are left out. Its result.
PyObject* call_with_tuple(PyCFunction function, PyObject* self, const Arguments& arguments, Py_ssize_t skip = 0);

enum class Shape : std::uint8_t {
  function,             // builtin function, METH_VARARGS | METH_KEYWORDS
  slow_operator,        // the same, an operator of torch.ops: in older releases (2.4 to 2.10, at least)
  fast_operator,        // an operator of torch.ops: a builtin, METH_FASTCALL | METH_KEYWORDS, or another callable
  method,               // method of Tensor, METH_VARARGS | METH_KEYWORDS
  method_no_arguments,  // method of Tensor, METH_NOARGS
  assignment,           // Tensor.__setitem__: a type slot, not a callable
  subscript,            // Tensor.__getitem__: another
  composite,            // an operation that torch writes in Python
  users_function,       // a user's own function, called through the core (hmp.op_wrap)
};

// What stands in an object's place while it is covered; of each shape one or two of these.
struct Stubs {
  FromC<vectorcallfunc> vectorcall = {};
  FromC<PyCFunctionWithKeywords> method = {};
  FromC<PyCFunction> method_no_arguments = {};
  FromC<objobjargproc> assignment = {};
  FromC<binaryfunc> subscript = {};
};

struct Callable {
  Shape shape = Shape::function;
  PyCFunction original = nullptr;
  Owned object;  // the builtin, descriptor or Python function
  vectorcallfunc original_slot = nullptr;
  objobjargproc original_assignment = nullptr;
  binaryfunc original_subscript = nullptr;
  PyMethodDef* definition = nullptr;   // as the object had it
  PyMethodDef definition_with_slot{};  // a fast function's, so that the interpreter does not pass the slot by

  bool is_method() const { return shape == Shape::method || shape == Shape::method_no_arguments; }
  bool is_python() const { return shape == Shape::composite || shape == Shape::users_function; }
  bool is_operator() const { return shape == Shape::slow_operator || shape == Shape::fast_operator; }
};

// Can this object be covered, and as what? False with an exception set. Everything is looked up that a store relies on:
// a definition in memory that may not be written to must be found before the first store, not by it.
bool find_shape(PyObject* object, MemoryMap& memory, Shape& shape);

// Is the object's calling convention one that we can answer? Nothing else is looked at.
bool can_cover(PyObject* object) noexcept;

// Tensor and the classes that derive from it and have copies of its slots that may be written to.
class TensorClasses {
 public:
  // None with an exception set where there is no memory.
  static std::optional<TensorClasses> find();

  [[nodiscard]] const std::vector<Owned>& all() const { return all_; }

 private:
  std::vector<Owned> all_;
};

// Nothing can fail from here on. `classes` were found after the last other code has run.
void put_in(Callable& callable, const Stubs& stubs, const TensorClasses& classes) noexcept;
void take_out(Callable& callable, const Stubs& stubs, const TensorClasses& classes) noexcept;

// A builtin function like this one that nobody answers for: same C function, an object of its own. `covered` is what
// stands for it if it is covered, or null. Null with an exception set.
Owned untouched_twin(PyObject* builtin, const Callable* covered);

// Refuses an object, with an exception that asks to report it. False.
bool refuse(PyObject* object, const char* why);

}  // namespace habana_mp::host

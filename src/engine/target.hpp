// A target: one of torch's own C functions or methods that the engine can answer, with its rule and its counters.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "engine/rule.hpp"

namespace habana_mp::engine {

struct Count {
  std::uint64_t calls = 0;
  std::uint64_t casts = 0;
  std::uint64_t bytes = 0;
};

inline constexpr std::size_t target_capacity = 2048;
inline constexpr std::size_t no_index = target_capacity;

// Targets are never freed: a call may be under way in another thread while a policy is replaced.
struct Target {
  enum class Shape : std::uint8_t {
    function,             // builtin function, METH_VARARGS | METH_KEYWORDS
    slow_operator,        // the same, an operator of torch.ops: in older releases (2.4 to 2.10, at least)
    fast_operator,        // an operator of torch.ops: a builtin, METH_FASTCALL | METH_KEYWORDS, or another callable
    method,               // method of Tensor, METH_VARARGS | METH_KEYWORDS
    method_no_arguments,  // method of Tensor, METH_NOARGS
    assignment,           // Tensor.__setitem__: a type slot, not a callable
    subscript,            // Tensor.__getitem__: another
    python,               // a Python function, called through the core (hmp.op_wrap, composites)
  };

  // Read on every call.
  const Rule* listed = &no_rule;    // what convert's policy says
  const Rule* unlisted = &no_rule;  // what holds where the lists are silent (rules 2 to 4)
  Shape shape = Shape::function;
  bool counts_no_version = false;  // of what it writes into
  PyCFunction original = nullptr;
  std::array<Count, rules::precision_count> counts{};

  // Read in regions: the place of its rule in theirs.
  std::size_t index = no_index;

  // Read when something is out of the ordinary.
  PyObject* object = nullptr;  // the builtin, descriptor or Python function; owned for the life of the process
  PyObject* called = nullptr;  // of a Python function: what is called for it, owned
  vectorcallfunc original_slot = nullptr;
  PyObject* twin = nullptr;            // a method's: the function that does the same with two tensors, owned
  PyMethodDef* definition = nullptr;   // as the object had it
  PyMethodDef definition_with_slot{};  // a fast function's, so that the interpreter does not pass the slot by
  std::string operation;               // the name that the lists and the report use
  std::string representation;          // repr(object), for the log
  bool installed = false;
  bool in_policy = false;   // of convert
  bool in_regions = false;  // of some region that was entered

  bool is_method() const { return shape == Shape::method || shape == Shape::method_no_arguments; }
  bool is_operator() const { return shape == Shape::slow_operator || shape == Shape::fast_operator; }
};

// By index; null beyond the last. The stubs in slots.cpp know their index at compile time.
extern std::array<Target*, target_capacity> targets;
extern std::size_t target_count;

// Null when the object has never been covered.
Target* find_target(PyObject* object) noexcept;

// The target of an object, made when there is none. Null with a Python exception set when there is no room.
// `shown` is what the log calls it.
Target* target_for(PyObject* object, Target::Shape shape, const char* operation, PyObject* shown);

// From now on the builtin `function` is called where the method is called with two plain tensors. Nothing happens where
// the method is not covered.
void set_function_twin(PyObject* method, PyObject* function) noexcept;

// The target of a Python function: not in `targets`, since users make as many as they like. What a dropped one counted
// is kept.
Target* make_function_target(PyObject* function, PyObject* shown, const char* operation);
void drop_function_target(Target* target) noexcept;

void for_each_target(const std::function<void(Target&)>& visit);

}  // namespace habana_mp::engine

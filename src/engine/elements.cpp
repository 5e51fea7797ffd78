// Reading and assigning elements. Most such calls leave nothing to decide, and are neither decided nor counted.
#include <algorithm>

#include "engine/call.hpp"
#include "engine/cast_arguments.hpp"
#include "host/modes.hpp"
#include "host/tensors.hpp"

namespace habana_mp::engine {

namespace {

// True if this key may select a value several times, as lists and tensors may. Numbers, slices, None and Ellipsis
// select each value at most once.
bool may_pick_twice(PyObject* key) {
  if (PyTuple_Check(key)) {
    return std::any_of(PySequence_Fast_ITEMS(key), PySequence_Fast_ITEMS(key) + PyTuple_GET_SIZE(key),
                       [](PyObject* part) { return PyTuple_Check(part) || may_pick_twice(part); });
  }
  return !PyLong_Check(key) && !PySlice_Check(key) && key != Py_None && key != Py_Ellipsis;
}

// True if the value has another precision than the tensor, or is a number that rule 9 clamps.
bool may_need_cast(PyObject* tensor, PyObject* value) {
  const Kind to = host::kind_of(tensor);
  if (!is_floating(to)) return false;
  if (is_number(value)) return is_lower(to) && saturated(value, to).has_value();
  const Kind from = host::kind_of(value);
  return is_floating(from) && from != to;
}

}  // namespace

int answer_assignment(Target& target, PyObject* tensor, PyObject* key, PyObject* value) {
  if (value == nullptr || !may_need_cast(tensor, value)) return target.original_assignment(tensor, key, value);
  PyObject* const values[] = {tensor, key, value};
  return Owned(answer(target, {values, 3, nullptr})) ? 0 : -1;
}

PyObject* answer_subscript(Target& target, PyObject* tensor, PyObject* key) {
  const bool may_add_up =
      may_pick_twice(key) && is_lower(host::kind_of(tensor)) && host::grad_is_enabled() && host::requires_grad(tensor);
  if (!may_add_up) return target.original_subscript(tensor, key);
  PyObject* const values[] = {tensor, key};
  return answer(target, {values, 2, nullptr});
}

}  // namespace habana_mp::engine

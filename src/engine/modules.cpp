#include "engine/modules.hpp"

#include <algorithm>
#include <utility>

#include "engine/region.hpp"
#include "engine/state.hpp"
#include "errors.hpp"

namespace habana_mp::engine {

namespace {

PyFunctionObject* watched = nullptr;  // owned
vectorcallfunc original = nullptr;
bool any_module = false;
std::vector<PyObject*> modules;  // sorted

PyObject* call_impl_stub(PyObject* function, PyObject* const* values, std::size_t flagged_count, PyObject* keywords) {
  if (PyVectorcall_NARGS(flagged_count) == 0 || !begins_to_speak(values[0])) {
    return original(function, values, flagged_count, keywords);
  }
  CastState wanted = current_state();
  wanted.region = rule_set_of_modules();
  enter_state(&watched, wanted);
  PyObject* result = original(function, values, flagged_count, keywords);
  if (result != nullptr) {
    leave_region(&watched);
  } else {
    HeldError held;
    leave_region(&watched);
    held.restore();
  }
  return result;
}

// Calls that the interpreter has specialized for the function go past the slot unless they are told.
void set_slot(PyFunctionObject* function, vectorcallfunc slot) {
#if PY_VERSION_HEX >= 0x030C0000
  PyFunction_SetVectorcall(function, slot);
#else
  function->vectorcall = slot;
#if PY_VERSION_HEX >= 0x030B0000
  function->func_version = 0;
#endif
#endif
}

// What CPython stores in every Python function's slot.
vectorcallfunc slot_of_functions() {
  PyObject* module = PyImport_ImportModule("inspect");
  PyObject* function = module == nullptr ? nullptr : PyObject_GetAttrString(module, "isfunction");
  const vectorcallfunc slot = function == nullptr || !PyFunction_Check(function)
                                  ? nullptr
                                  : reinterpret_cast<PyFunctionObject*>(function)->vectorcall;
  Py_XDECREF(function);
  Py_XDECREF(module);
  return slot;
}

}  // namespace

bool begins_to_speak(PyObject* module) noexcept {
  const ThreadState& state = thread_state;
  if (watched == nullptr || state.region != nullptr || state.silent) return false;
  return any_module || std::binary_search(modules.begin(), modules.end(), module);
}

bool may_watch_modules(PyObject* call_impl) {
  if (watched != nullptr) return true;
  const vectorcallfunc expected = slot_of_functions();
  const bool is_as_expected = expected != nullptr && PyFunction_Check(call_impl) &&
                              reinterpret_cast<PyFunctionObject*>(call_impl)->vectorcall == expected;
  if (is_as_expected) return rule_set_of_modules() != nullptr;
  if (PyErr_Occurred() == nullptr) {
    PyErr_SetString(PyExc_RuntimeError,
                    "habana_mp cannot tell where modules run: torch.nn.Module._call_impl is not a Python function that "
                    "is called as others are. Use `within=None`");
  }
  return false;
}

bool watch_modules(PyObject* call_impl, std::optional<std::vector<PyObject*>> among) {
  if (!may_watch_modules(call_impl)) return false;
  if (watched == nullptr) {
    watched = reinterpret_cast<PyFunctionObject*>(Py_NewRef(call_impl));
    original = watched->vectorcall;
    set_slot(watched, &call_impl_stub);
  }
  any_module = !among.has_value();
  modules = std::move(among).value_or(std::vector<PyObject*>());
  std::sort(modules.begin(), modules.end());
  return true;
}

void stop_watching_modules() noexcept {
  if (watched == nullptr) return;
  set_slot(watched, original);
  Py_CLEAR(watched);
  modules.clear();
}

}  // namespace habana_mp::engine

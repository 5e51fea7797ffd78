#include "host/callers.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "errors.hpp"
#include "from_c.hpp"

namespace habana_mp::host {

namespace {

// The address tells threads apart.
thread_local char here = 0;

// Python clears the states of other threads after a fork and at exit. Their thread_local objects are then out of reach.
void end_thread(PyObject* capsule) {
  if (PyCapsule_GetContext(capsule) != &here) return;
  reinterpret_cast<void (*)()>(PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule)))();
}

}  // namespace

PyObject* file_of(PyObject* code) noexcept { return reinterpret_cast<PyCodeObject*>(code)->co_filename; }

PyObject* function_of(PyObject* code) noexcept { return reinterpret_cast<PyCodeObject*>(code)->co_name; }

bool intercepts_calls(PyObject* code) noexcept {
  return PyUnicode_CompareWithASCIIString(function_of(code), "__torch_function__") == 0;
}

bool have_same_place(PyObject* code, PyObject* other) noexcept {
  const auto* one = reinterpret_cast<PyCodeObject*>(code);
  const auto* two = reinterpret_cast<PyCodeObject*>(other);
  // Two pieces of code without a file (<string>) or a name (<lambda>) may be at the same line, so they count as
  // different.
  return one->co_firstlineno == two->co_firstlineno && PyUnicode_Compare(one->co_name, two->co_name) == 0 &&
         PyUnicode_Compare(one->co_filename, two->co_filename) == 0 && !text_of(one->co_name).starts_with('<') &&
         !text_of(one->co_filename).starts_with('<');
}

bool is_of_file(PyObject* code, PyObject* beginnings) noexcept {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(beginnings); ++i) {
    if (PyUnicode_Tailmatch(file_of(code), PyTuple_GET_ITEM(beginnings, i), 0, PY_SSIZE_T_MAX, -1) == 1) return true;
  }
  return false;
}

// torch.distributed has no code of a model: what it computes are parameters and gradients.
// Each call with a cast runs this, so it makes no object for the frame.
bool caller_is_distributed() {
  PyObject* const globals = PyEval_GetGlobals();
  const Owned name = globals == nullptr ? nullptr : name_of_module(globals);
  return name && text_of(name.get()).starts_with("torch.distributed.");
}

bool is_worker(PyObject* worker_namespace) {
  if (worker_namespace == nullptr) return false;
  static PyObject* const name = interned("_worker_info");
  PyObject* info = PyDict_GetItemWithError(worker_namespace, name);
  if (info == nullptr) clear_error();
  return info != nullptr && info != Py_None;
}

bool jit_trace_was_recording() {
  const HeldError held;
  for (FrameWalk walk; walk; walk.outwards()) {
    const Owned name = walk.module_name();
    if (name && PyUnicode_CompareWithASCIIString(name.get(), "torch.jit._trace") == 0) return true;
  }
  return false;
}

bool raised_by_user_code() {
  if (PyErr_ExceptionMatches(PyExc_NotImplementedError) != 0) return false;
  const HeldError held;
  auto* entry = reinterpret_cast<PyTracebackObject*>(held.traceback());
  while (entry != nullptr && entry->tb_next != nullptr) entry = entry->tb_next;
  if (entry == nullptr || held.has_context()) return false;
  const Owned module = FrameWalk(entry->tb_frame).module_name();
  const std::string_view name = module ? text_of(module.get()) : std::string_view();
  return name != "torch" && !name.starts_with("torch.") && !name.starts_with("habana_mp.");
}

bool error_is_about_a_dtype() {
  const HeldError held;
  const Owned message = held.text();
  clear_error();
  const std::string_view text = message ? text_of(message.get()) : std::string_view();
  constexpr std::array words{"type", "Type", "implemented for"};
  return std::any_of(words.begin(), words.end(), [text](const char* word) { return text.find(word) != text.npos; });
}

PyObject* pair_of(PyObject* codes, PyObject* code) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(codes); ++i) {
    PyObject* pair = PyList_GET_ITEM(codes, i);
    if (PyTuple_GET_ITEM(pair, 0) == code) return pair;
  }
  return nullptr;
}

Owned init_codes(PyTypeObject* type) {
  static PyObject* const init_name = interned("__init__");
  static PyObject* const wrapped_name = interned("__wrapped__");
  Owned codes(PyList_New(0));
  PyObject* classes = type->tp_mro;
  for (Py_ssize_t i = 0; codes && i < PyTuple_GET_SIZE(classes); ++i) {
    PyObject* names = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(classes, i))->tp_dict;
    PyObject* init = names == nullptr ? nullptr : PyDict_GetItemWithError(names, init_name);
    while (init != nullptr && PyFunction_Check(init) && pair_of(codes.get(), PyFunction_GET_CODE(init)) == nullptr) {
      PyObject* attributes = reinterpret_cast<PyFunctionObject*>(init)->func_dict;
      PyObject* wrapped = attributes == nullptr ? nullptr : PyDict_GetItemWithError(attributes, wrapped_name);
      const Owned pair(PyTuple_Pack(2, PyFunction_GET_CODE(init), wrapped == nullptr ? Py_None : wrapped));
      if (!pair || PyList_Append(codes.get(), pair.get()) != 0) {
        codes.reset();
        break;
      }
      init = wrapped;
    }
  }
  if (codes) clear_error();  // a key could not be compared
  return codes;
}

void at_thread_end(const char* name, void (*work)()) {
  PyObject* const dictionary = PyThreadState_GetDict();  // cleared at the thread's end
  if (dictionary == nullptr) return;
  const HeldError held;
  if (PyDict_GetItemString(dictionary, name) == nullptr) {
    const Owned capsule(PyCapsule_New(reinterpret_cast<void*>(work), name, from_c<end_thread>.pointer()));
    if (capsule && PyCapsule_SetContext(capsule.get(), &here) == 0) {
      PyDict_SetItemString(dictionary, name, capsule.get());
    }
  }
  clear_error();  // no other code runs here
}

}  // namespace habana_mp::host

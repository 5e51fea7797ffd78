#include "host/callers.hpp"

#include <string_view>

#include "errors.hpp"
#include "host/finding.hpp"
#include "host/ledger.hpp"

namespace habana_mp::host {

namespace {

Assumption raise_instruction{
    "cpython.raise-instruction",
    "the instruction at which a traceback ends tells whether Python code raised by `raise`, or something that it "
    "called",
    "two samples: a `raise`, and a call of C that raises",
    "an error that reaches torch's call through any Python code of others is passed on: the call is not made again in "
    "float32"};

// Returns the number of an instruction in the module `opcode`; -1 if there is no such instruction.
long number_of_opcode(const char* name) {
  const Owned opcodes(PyImport_ImportModule("opcode"));
  const Owned map(opcodes ? PyObject_GetAttrString(opcodes.get(), "opmap") : nullptr);
  const Owned number(map ? PyMapping_GetItemString(map.get(), name) : nullptr);
  const long found = number ? PyLong_AsLong(number.get()) : -1;
  clear_error();
  return found;
}

PyTracebackObject* innermost_of(PyObject* traceback) {
  auto* entry = reinterpret_cast<PyTracebackObject*>(traceback);
  while (entry != nullptr && entry->tb_next != nullptr) entry = entry->tb_next;
  return entry;
}

bool ends_in_raise(const PyTracebackObject* entry) {
  static const long raise = number_of_opcode("RAISE_VARARGS");
  const FrameWalk frame(entry->tb_frame);
  const Owned bytes(checked(PyObject_GetAttrString(frame.code(), "co_code")));
  return entry->tb_lasti >= 0 && entry->tb_lasti < PyBytes_GET_SIZE(bytes.get()) &&
         static_cast<unsigned char>(PyBytes_AS_STRING(bytes.get())[entry->tb_lasti]) == raise;
}

bool raise_is_detectable() {
  const Owned list = made_by(
      "def by_raise():\n"
      "    raise ValueError\n"
      "def by_call():\n"
      "    int('x')\n"
      "def traceback_of(function):\n"
      "    try:\n"
      "        function()\n"
      "    except ValueError as error:\n"
      "        return error.__traceback__\n"
      "def make():\n"
      "    return [traceback_of(by_raise), traceback_of(by_call)]\n");
  return list && ends_in_raise(innermost_of(PyList_GET_ITEM(list.get(), 0))) &&
         !ends_in_raise(innermost_of(PyList_GET_ITEM(list.get(), 1)));
}

bool can_detect_raise = false;

// Returns the module name of the innermost Python code; null if there is no such name. Each call with a cast runs this,
// so it makes no object for the frame.
Owned module_of_caller() {
  PyObject* const globals = PyEval_GetGlobals();
  return globals == nullptr ? nullptr : name_of_module(globals);
}

}  // namespace

void bind_callers() {
  can_detect_raise = raise_instruction.holds_by(raise_is_detectable);
  clear_error();
}

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

bool is_of_file(PyObject* code, PyObject* beginnings) noexcept { return begins_with_one_of(file_of(code), beginnings); }

// torch.distributed has no code of a model: what it computes are parameters and gradients.
bool caller_is_distributed() {
  const Owned name = module_of_caller();
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
  const PyTracebackObject* entry = innermost_of(held.traceback());
  if (entry == nullptr || held.has_context()) return false;
  const Owned module = FrameWalk(entry->tb_frame).module_name();
  const std::string_view name = module ? text_of(module.get()) : std::string_view();
  if (name == "torch" || name.starts_with("torch.") || name.starts_with("habana_mp.")) return false;
  return !can_detect_raise || ends_in_raise(entry);
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

}  // namespace habana_mp::host

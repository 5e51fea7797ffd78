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

// As the module `opcode` calls it; -1 where it has no such one.
long number_of_opcode(const char* name) {
  PyObject* opcodes = PyImport_ImportModule("opcode");
  PyObject* map = opcodes == nullptr ? nullptr : PyObject_GetAttrString(opcodes, "opmap");
  PyObject* number = map == nullptr ? nullptr : PyMapping_GetItemString(map, name);
  const long found = number == nullptr ? -1 : PyLong_AsLong(number);
  Py_XDECREF(number);
  Py_XDECREF(map);
  Py_XDECREF(opcodes);
  PyErr_Clear();
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
  PyObject* bytes = PyObject_GetAttrString(frame.code(), "co_code");
  const bool ends = bytes != nullptr && entry->tb_lasti >= 0 && entry->tb_lasti < PyBytes_GET_SIZE(bytes) &&
                    static_cast<unsigned char>(PyBytes_AS_STRING(bytes)[entry->tb_lasti]) == raise;
  Py_XDECREF(bytes);
  PyErr_Clear();
  return ends;
}

bool raise_is_told() {
  PyObject* list = made_by(
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
  const bool told = list != nullptr && ends_in_raise(innermost_of(PyList_GET_ITEM(list, 0))) &&
                    !ends_in_raise(innermost_of(PyList_GET_ITEM(list, 1)));
  Py_XDECREF(list);
  return told;
}

bool instruction_tells = false;

// The innermost Python code's module, a new reference.
PyObject* module_of_caller() {
  const FrameWalk caller;
  return caller ? caller.module_name() : nullptr;
}

}  // namespace

void bind_callers() noexcept {
  instruction_tells = raise_instruction.holds_by(raise_is_told);
  PyErr_Clear();
}

PyObject* file_of(PyObject* code) noexcept { return reinterpret_cast<PyCodeObject*>(code)->co_filename; }

bool is_of_file(PyObject* code, PyObject* beginnings) noexcept { return begins_with_one_of(file_of(code), beginnings); }

// What it computes are parameters and gradients; a model's code is never there.
bool caller_is_distributed() noexcept {
  PyObject* name = module_of_caller();
  const char* text = name != nullptr ? PyUnicode_AsUTF8(name) : nullptr;
  const bool is_it = text != nullptr && std::string_view(text).starts_with("torch.distributed.");
  Py_XDECREF(name);
  PyErr_Clear();
  return is_it;
}

bool is_worker(PyObject* worker_namespace) noexcept {
  if (worker_namespace == nullptr) return false;
  static PyObject* const name = PyUnicode_InternFromString("_worker_info");
  PyObject* info = PyDict_GetItemWithError(worker_namespace, name);
  if (info == nullptr) PyErr_Clear();
  return info != nullptr && info != Py_None;
}

bool was_recorded_by_jit() noexcept {
  HeldError held;
  bool found = false;
  for (FrameWalk walk; walk && !found; walk.outwards()) {
    PyObject* name = walk.module_name();
    found = name != nullptr && PyUnicode_CompareWithASCIIString(name, "torch.jit._trace") == 0;
    Py_XDECREF(name);
  }
  held.restore();
  return found;
}

bool was_raised_by_others() noexcept {
  if (PyErr_ExceptionMatches(PyExc_NotImplementedError) != 0) return false;
  HeldError held;
  static PyObject* const own = Py_BuildValue("(ss)", "torch.", "habana_mp.");
  const PyTracebackObject* entry = innermost_of(held.traceback());
  bool by_others = false;
  if (entry != nullptr && !held.has_context()) {
    PyObject* module = FrameWalk(entry->tb_frame).module_name();
    const bool is_torchs = module != nullptr &&
                           (begins_with_one_of(module, own) || PyUnicode_CompareWithASCIIString(module, "torch") == 0);
    by_others = !is_torchs && (!instruction_tells || ends_in_raise(entry));
    Py_XDECREF(module);
  }
  PyErr_Clear();
  held.restore();
  return by_others;
}

PyObject* pair_of(PyObject* codes, PyObject* code) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(codes); ++i) {
    PyObject* pair = PyList_GET_ITEM(codes, i);
    if (PyTuple_GET_ITEM(pair, 0) == code) return pair;
  }
  return nullptr;
}

PyObject* init_codes(PyTypeObject* type) {
  PyObject* codes = PyList_New(0);
  PyObject* classes = type->tp_mro;
  for (Py_ssize_t i = 0; codes != nullptr && i < PyTuple_GET_SIZE(classes); ++i) {
    PyObject* names = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(classes, i))->tp_dict;
    PyObject* init = names == nullptr ? nullptr : PyDict_GetItemString(names, "__init__");
    while (init != nullptr && PyFunction_Check(init) && pair_of(codes, PyFunction_GET_CODE(init)) == nullptr) {
      PyObject* attributes = reinterpret_cast<PyFunctionObject*>(init)->func_dict;
      PyObject* wrapped = attributes == nullptr ? nullptr : PyDict_GetItemString(attributes, "__wrapped__");
      PyObject* pair = PyTuple_Pack(2, PyFunction_GET_CODE(init), wrapped == nullptr ? Py_None : wrapped);
      const bool is_added = pair != nullptr && PyList_Append(codes, pair) == 0;
      Py_XDECREF(pair);
      if (!is_added) {
        Py_CLEAR(codes);
        break;
      }
      init = wrapped;
    }
  }
  return codes;
}

}  // namespace habana_mp::host

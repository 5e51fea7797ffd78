// The Python code that is running: where a call comes from.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <frameobject.h>  // PyFrame_GetBack is declared here before 3.11

namespace habana_mp::host {

// Does a string begin with one of these, a tuple of strings?
inline bool begins_with_one_of(PyObject* text, PyObject* beginnings) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(beginnings); ++i) {
    if (PyUnicode_Tailmatch(text, PyTuple_GET_ITEM(beginnings, i), 0, PY_SSIZE_T_MAX, -1) == 1) return true;
  }
  return false;
}

// Steps from frame to frame, outwards, without leaving an exception behind.
class FrameWalk {
 public:
  FrameWalk() : FrameWalk(PyEval_GetFrame()) {}
  explicit FrameWalk(PyFrameObject* innermost) : frame_(innermost) { Py_XINCREF(frame_); }
  ~FrameWalk() { Py_XDECREF(frame_); }
  FrameWalk(const FrameWalk&) = delete;
  FrameWalk& operator=(const FrameWalk&) = delete;

  explicit operator bool() const { return frame_ != nullptr; }
  void outwards() {
    PyFrameObject* back = PyFrame_GetBack(frame_);
    Py_DECREF(frame_);
    frame_ = back;
  }
  // Borrowed from the frame, which is running.
  PyObject* code() const {
    PyCodeObject* code = PyFrame_GetCode(frame_);
    Py_DECREF(code);
    return reinterpret_cast<PyObject*>(code);
  }
  // The name of the module whose code it is, a new reference; null where there is none.
  PyObject* module_name() const {
    PyObject* globals = PyObject_GetAttrString(reinterpret_cast<PyObject*>(frame_), "f_globals");
    const bool is_known = globals != nullptr && PyDict_Check(globals);
    PyObject* name = is_known ? Py_XNewRef(PyDict_GetItemString(globals, "__name__")) : nullptr;
    Py_XDECREF(globals);
    PyErr_Clear();
    if (name != nullptr && !PyUnicode_Check(name)) Py_CLEAR(name);
    return name;
  }
  // Has a debugger a function of its own there?
  bool is_traced() const {
    PyObject* tracing = PyObject_GetAttrString(reinterpret_cast<PyObject*>(frame_), "f_trace");
    const bool is_it = tracing != nullptr && tracing != Py_None;
    Py_XDECREF(tracing);
    PyErr_Clear();
    return is_it;
  }
  // The value of the code's first parameter (or the first of its *args), borrowed; null where it has none.
  PyObject* first_parameter() const {
    auto* code = reinterpret_cast<PyCodeObject*>(this->code());
    const bool starred = code->co_argcount == 0;
    if (starred && (code->co_flags & CO_VARARGS) == 0) return nullptr;
#if PY_VERSION_HEX >= 0x030B0000
    PyObject* names = PyCode_GetVarnames(code);
#else
    PyObject* names = Py_NewRef(code->co_varnames);
#endif
    // Keyword-only parameters stand between the positional ones and *args.
    PyObject* value =
        names == nullptr ? nullptr : variable(PyTuple_GET_ITEM(names, starred ? code->co_kwonlyargcount : 0));
    Py_XDECREF(names);
    PyErr_Clear();
    if (value == nullptr) return nullptr;
    PyObject* first = value;
    if (starred) first = PyTuple_Check(value) && PyTuple_GET_SIZE(value) > 0 ? PyTuple_GET_ITEM(value, 0) : nullptr;
    Py_DECREF(value);  // the frame keeps it
    return first;
  }

  // Is this one of the variables that the code's function took from around it? Also where there are none to tell.
  bool encloses(PyObject* object) const {
    auto* code = reinterpret_cast<PyCodeObject*>(this->code());
#if PY_VERSION_HEX >= 0x030B0000
    PyObject* names = PyCode_GetFreevars(code);
#else
    PyObject* names = Py_NewRef(code->co_freevars);
#endif
    bool found = names != nullptr && PyTuple_GET_SIZE(names) == 0;
    for (Py_ssize_t i = 0; names != nullptr && !found && i < PyTuple_GET_SIZE(names); ++i) {
      PyObject* value = variable(PyTuple_GET_ITEM(names, i));
      found = value == object;
      Py_XDECREF(value);
    }
    Py_XDECREF(names);
    PyErr_Clear();
    return found;
  }

  // A variable of the code, a new reference; null, with an exception set, where it has no value.
  PyObject* variable(PyObject* name) const {
#if PY_VERSION_HEX >= 0x030C0000
    return PyFrame_GetVar(frame_, name);
#else
    PyObject* locals = PyObject_GetAttrString(reinterpret_cast<PyObject*>(frame_), "f_locals");
    PyObject* value = locals == nullptr ? nullptr : PyObject_GetItem(locals, name);
    Py_XDECREF(locals);
    return value;
#endif
  }

 private:
  PyFrameObject* frame_;
};

}  // namespace habana_mp::host

// Reads the frames of running Python code, to find where a call comes from.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <frameobject.h>  // PyFrame_GetBack is declared here before 3.11

#include <string>
#include <string_view>

#include "errors.hpp"
#include "owned.hpp"

namespace habana_mp::host {

// Returns the UTF-8 text of a string, which is valid as long as the string lives. Empty, with no exception set, if the
// string cannot be encoded.
inline std::string_view text_of(PyObject* string) noexcept {
  Py_ssize_t size = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(string, &size);
  if (text == nullptr) clear_error();
  return text == nullptr ? std::string_view() : std::string_view(text, static_cast<std::size_t>(size));
}

// Returns the UTF-8 bytes of any string. A lone surrogate becomes three bytes, as with Python's "surrogatepass".
inline std::string bytes_of(PyObject* string) {
  const Owned bytes(checked(PyUnicode_AsEncodedString(string, "utf-8", "surrogatepass")));
  return {PyBytes_AS_STRING(bytes.get()), static_cast<std::size_t>(PyBytes_GET_SIZE(bytes.get()))};
}

// Returns the module name that these globals contain. Null, with no exception set, if it is missing or not a string.
inline Owned name_of_module(PyObject* globals) {
  static PyObject* const key = interned("__name__");
  Owned name = Owned::borrowed_or_null(PyDict_Check(globals) ? PyDict_GetItemWithError(globals, key) : nullptr);
  clear_error();
  if (name && !PyUnicode_Check(name.get())) name.reset();
  return name;
}

// Walks outwards from frame to frame and leaves no exception set. CPython makes an object for a frame that has none: if
// memory runs out for this, the walk throws std::bad_alloc.
class FrameWalk {
 public:
  FrameWalk() : FrameWalk(PyEval_GetFrame()) {
    if (!frame_ && PyEval_GetGlobals() != nullptr) throw std::bad_alloc();
  }
  explicit FrameWalk(PyFrameObject* innermost)
      : frame_(Owned::borrowed_or_null(reinterpret_cast<PyObject*>(innermost))) {}

  explicit operator bool() const { return static_cast<bool>(frame_); }
  // Goes to the frame that called this one. The walk then converts to false if no frame called it.
  void outwards() {
    frame_ = Owned(reinterpret_cast<PyObject*>(PyFrame_GetBack(frame())));
    if (!frame_) drop_error_unless_memory_error();
  }
  // Returns the frame's code, borrowed from the frame, which holds it while it runs.
  PyObject* code() const {
    const Owned code(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame())));
    return code.get();
  }
  // Returns the name of the frame's module. Null if it has none.
  Owned module_name() {
    static PyObject* const attribute = interned("f_globals");
    const Owned globals(PyObject_GetAttr(frame_.get(), attribute));
    drop_error_unless_memory_error();
    return globals ? name_of_module(globals.get()) : nullptr;
  }
  // Returns the position in the code, a number that differs from line to line.
  int position() const { return PyFrame_GetLasti(frame()); }
  int line() const { return PyFrame_GetLineNumber(frame()); }
  // True if a debugger has set a trace function for the frame.
  bool is_traced() {
    const Owned tracing(PyObject_GetAttrString(frame_.get(), "f_trace"));
    drop_error_unless_memory_error();
    return tracing && tracing.get() != Py_None;
  }
  // Returns the value of the code's first parameter (or the first of its *args), borrowed. Null if it has no parameter
  // or the parameter has no value.
  PyObject* first_parameter() {
    auto* code = reinterpret_cast<PyCodeObject*>(this->code());
    const bool starred = code->co_argcount == 0;
    if (starred && (code->co_flags & CO_VARARGS) == 0) return nullptr;
    const Owned names(PyCode_GetVarnames(code));
    // Keyword-only parameters come between the positional parameters and *args.
    const Owned held = names ? variable(PyTuple_GET_ITEM(names.get(), starred ? code->co_kwonlyargcount : 0)) : nullptr;
    drop_error_unless_memory_error();
    PyObject* const value = held.get();  // the frame holds it
    if (value == nullptr || !starred) return value;
    return PyTuple_Check(value) && PyTuple_GET_SIZE(value) > 0 ? PyTuple_GET_ITEM(value, 0) : nullptr;
  }

  // True if `object` is the value of a free variable of the code, or if the code has no free variables.
  bool encloses(PyObject* object) {
    auto* code = reinterpret_cast<PyCodeObject*>(this->code());
    const Owned names(PyCode_GetFreevars(code));
    bool found = names && PyTuple_GET_SIZE(names.get()) == 0;
    for (Py_ssize_t i = 0; names && !found && i < PyTuple_GET_SIZE(names.get()); ++i) {
      found = variable(PyTuple_GET_ITEM(names.get(), i)).get() == object;
      drop_error_unless_memory_error();
    }
    drop_error_unless_memory_error();
    return found;
  }

  // Returns a variable of the code; null with an exception set if it has no value.
  Owned variable(PyObject* name) const {
#if PY_VERSION_HEX >= 0x030C0000
    return Owned(PyFrame_GetVar(frame(), name));
#else
    const Owned locals(PyObject_GetAttrString(frame_.get(), "f_locals"));
    return Owned(locals ? PyObject_GetItem(locals.get(), name) : nullptr);
#endif
  }

 private:
  PyFrameObject* frame() const { return reinterpret_cast<PyFrameObject*>(frame_.get()); }

  Owned frame_;
};

}  // namespace habana_mp::host

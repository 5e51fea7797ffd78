// Helpers for Python exceptions that this code handles itself.
#pragma once

#include <new>

#include "owned.hpp"

namespace habana_mp {

// Takes the exception that is set, if any, and sets it again on destruction unless it was dropped. Exceptions that were
// set in the meantime are then replaced.
class HeldError {
 public:
#if PY_VERSION_HEX >= 0x030C0000
  HeldError() : raised_(PyErr_GetRaisedException()) {}
#else
  HeldError() {
    PyObject* type = nullptr;
    PyObject* value = nullptr;
    PyObject* traceback = nullptr;
    PyErr_Fetch(&type, &value, &traceback);
    type_ = Owned(type);
    raised_ = Owned(value);
    traceback_ = Owned(traceback);
  }
#endif
  ~HeldError() {
    if (is_dropped_) return;
#if PY_VERSION_HEX >= 0x030C0000
    PyErr_SetRaisedException(raised_.release());
#else
    PyErr_Restore(type_.release(), raised_.release(), traceback_.release());
#endif
  }
  HeldError(const HeldError&) = delete;
  HeldError& operator=(const HeldError&) = delete;

  // Returns the traceback of the exception, borrowed; null if it passed no Python code.
  [[nodiscard]] PyObject* traceback() const {
#if PY_VERSION_HEX >= 0x030C0000
    const Owned traceback(raised_ ? PyException_GetTraceback(raised_.get()) : nullptr);
    return traceback.get();  // the exception holds it
#else
    return traceback_.get();
#endif
  }
  [[nodiscard]] explicit operator bool() const { return static_cast<bool>(raised_); }
  // Returns the message; null if there is no exception, or with another one set.
  [[nodiscard]] Owned text() const { return Owned(raised_ ? PyObject_Str(raised_.get()) : nullptr); }
  // True if it was raised while another exception was handled.
  [[nodiscard]] bool has_context() const {
    PyObject* const raised = raised_.get();
    if (raised == nullptr || !PyExceptionInstance_Check(raised)) return false;
    return static_cast<bool>(Owned(PyException_GetContext(raised)));
  }

  // The exception stays unset.
  void drop() {
    is_dropped_ = true;
#if PY_VERSION_HEX < 0x030C0000
    traceback_.reset();
    type_.reset();
#endif
    raised_.reset();
  }

 private:
#if PY_VERSION_HEX < 0x030C0000
  Owned type_;
  Owned traceback_;
#endif
  Owned raised_;  // null if none was set; before CPython 3.12 it may be an argument of the class `type_`
  bool is_dropped_ = false;
};

// True if the exception that is set is not an error of the code that was called, but interrupts it: one that does not
// derive from Exception (Ctrl-C, SystemExit), and one of a class that neither CPython nor torch has, or a
// TimeoutError, as signal handlers raise them.
bool is_interrupt() noexcept;

// Drops the exception that is set, if any. An interrupt stays.
inline void drop_error() {
  if (PyErr_Occurred() != nullptr && !is_interrupt()) PyErr_Clear();
}

// Takes the exception that is set, and raises it in this thread as soon as the thread runs Python code again.
void raise_later() noexcept;

// Drops the exception that is set, if any: for functions that cannot fail. An interrupt is raised later. No other code
// of the core drops exceptions (tests/host/test_one_place.py).
inline void clear_error() noexcept {
  if (PyErr_Occurred() == nullptr) return;
  drop_error();
  if (PyErr_Occurred() != nullptr) raise_later();
}

// Lets Python print the exception that is set, for functions that cannot fail. An exception that does not derive from
// Exception is raised later.
inline void print_error(PyObject* where) noexcept {
  if (PyErr_ExceptionMatches(PyExc_Exception) == 0) {
    raise_later();
  } else {
    PyErr_WriteUnraisable(where);
  }
}

// Drops the Python exception of a lookup that found nothing. Throws std::bad_alloc if the lookup failed because memory
// ran out: it then proves nothing.
inline void drop_error_unless_memory_error() {
  if (PyErr_Occurred() == nullptr) return;
  const bool is_of_memory = PyErr_ExceptionMatches(PyExc_MemoryError) != 0;
  clear_error();
  if (is_of_memory) throw std::bad_alloc();
}

// Returns the object. Throws std::bad_alloc for null, for results of functions that return null only when memory runs
// out. The Python exception is dropped, since the code that catches std::bad_alloc sets one.
inline PyObject* checked(PyObject* made) {
  if (made != nullptr) return made;
  PyErr_Clear();
  throw std::bad_alloc();
}

// Returns a Python string that is never freed. Throws std::bad_alloc; the next call then initializes a static of this
// value.
inline PyObject* interned(const char* text) { return checked(PyUnicode_InternFromString(text)); }

}  // namespace habana_mp

// The arguments of one call, and buffers with one element for each.
#pragma once

#include "host/callables.hpp"

namespace habana_mp::engine {

using host::Arguments;

// Most calls have no more arguments than this. Calls with more use the heap.
inline constexpr Py_ssize_t inline_arguments = 24;

template <typename T>
class SmallBuffer {
 public:
  explicit SmallBuffer(Py_ssize_t count) : data_(count <= inline_arguments ? inline_ : new T[count]) {}
  ~SmallBuffer() {
    if (data_ != inline_) delete[] data_;
  }
  SmallBuffer(const SmallBuffer&) = delete;
  SmallBuffer& operator=(const SmallBuffer&) = delete;
  T& operator[](Py_ssize_t i) { return data_[i]; }
  const T& operator[](Py_ssize_t i) const { return data_[i]; }
  T* data() { return data_; }

 private:
  T inline_[inline_arguments];
  T* data_;
};

// True if two keywords are equal. A caller may pass keywords that are not strings: torch raises the error for them.
inline bool same_name(PyObject* a, PyObject* b) {
  return a == b || (PyUnicode_Check(a) && PyUnicode_Check(b) && PyUnicode_Compare(a, b) == 0);
}

// True if `keywords`, a tuple of names or null, contains `keyword`.
inline bool holds(PyObject* keywords, PyObject* keyword) {
  if (keywords == nullptr) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keywords); ++i) {
    if (same_name(PyTuple_GET_ITEM(keywords, i), keyword)) return true;
  }
  return false;
}

// Returns the argument at this position or with this name, a borrowed reference. Null if the call has no such argument.
inline PyObject* find_argument(const Arguments& arguments, Py_ssize_t position, PyObject* name) {
  if (position < arguments.positional) return arguments.values[position];
  for (Py_ssize_t i = 0; i < arguments.keyword_count(); ++i) {
    if (same_name(PyTuple_GET_ITEM(arguments.keywords, i), name)) return arguments.values[arguments.positional + i];
  }
  return nullptr;
}

// Returns the positional arguments as a tuple, and the others as a dict. Null with an exception set when memory runs
// out.
inline Owned positional_of(const Arguments& arguments) {
  Owned tuple(PyTuple_New(arguments.positional));
  for (Py_ssize_t i = 0; tuple && i < arguments.positional; ++i) {
    PyTuple_SET_ITEM(tuple.get(), i, Owned::borrowed(arguments.values[i]).release());
  }
  return tuple;
}

// Returns the values of all arguments as a tuple.
inline Owned all_of(const Arguments& arguments) {
  return positional_of({arguments.values, arguments.count(), nullptr});
}

inline Owned keywords_of(const Arguments& arguments) {
  Owned keywords(PyDict_New());
  for (Py_ssize_t i = 0; keywords && i < arguments.keyword_count(); ++i) {
    PyObject* const value = arguments.values[arguments.positional + i];
    if (PyDict_SetItem(keywords.get(), PyTuple_GET_ITEM(arguments.keywords, i), value) != 0) return nullptr;
  }
  return keywords;
}

inline bool is_number(PyObject* object) { return PyFloat_CheckExact(object) || PyLong_CheckExact(object); }

}  // namespace habana_mp::engine

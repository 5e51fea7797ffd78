// References of Python objects, counted by types: no other file counts them by hand (tests/host/test_references.py).
//
// - A parameter that is borrowed is a PyObject*; so is a result that is.
// - A result that is a new reference is an Owned. What CPython calls (stubs, slots, methods) gives back a PyObject* and
//   ends in `release`. So does what a call passes on its way (engine/call.hpp, engine/originals.hpp): its result comes
//   from CPython and goes there.
// - A global that holds references is a NeverDestroyed: when the program ends, the interpreter is gone.
// - What is held until the process ends, and by nobody in particular, is `kept_for_good`.
//
// A pointer to a struct of CPython's, such as PyFrameObject*, is held as the object that it is, and cast at its use.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

namespace habana_mp {

// One reference, or none. Where it is let go other code may run: finalizers, callbacks of weak references. An exception
// that is set stays set.
class Owned {
 public:
  constexpr Owned() noexcept = default;
  constexpr Owned(std::nullptr_t) noexcept {}
  // Takes a new reference, as CPython's functions give it, or null.
  constexpr explicit Owned(PyObject* new_reference) noexcept : object_(new_reference) {}
  // One reference more to an object that somebody else holds.
  [[nodiscard]] static Owned borrowed(PyObject* object) noexcept {
    Py_INCREF(object);
    return Owned(object);
  }
  // The same of what may be null.
  [[nodiscard]] static Owned borrowed_or_null(PyObject* object) noexcept {
    Py_XINCREF(object);
    return Owned(object);
  }

  Owned(Owned&& other) noexcept : object_(other.release()) {}
  // What was held goes last, when the other reference is in its place.
  Owned& operator=(Owned&& other) noexcept {
    PyObject* const taken = other.release();
    PyObject* const former = std::exchange(object_, taken);
    Py_XDECREF(former);
    return *this;
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() { Py_XDECREF(object_); }

  [[nodiscard]] PyObject* get() const noexcept { return object_; }
  // The reference is the caller's from now on.
  [[nodiscard]] PyObject* release() noexcept { return std::exchange(object_, nullptr); }
  void reset() noexcept { *this = nullptr; }
  explicit operator bool() const noexcept { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

// Several, one after the other as CPython takes arguments; there is room for `most`.
class OwnedArray {
 public:
  explicit OwnedArray(Py_ssize_t most) : objects_(std::make_unique<PyObject*[]>(static_cast<std::size_t>(most))) {}
  ~OwnedArray() {
    for (Py_ssize_t i = 0; i < count_; ++i) Py_DECREF(objects_[static_cast<std::size_t>(i)]);
  }
  OwnedArray(const OwnedArray&) = delete;
  OwnedArray& operator=(const OwnedArray&) = delete;

  void add_borrowed(PyObject* object) { objects_[static_cast<std::size_t>(count_++)] = Py_NewRef(object); }
  [[nodiscard]] PyObject* const* data() const { return objects_.get(); }

 private:
  std::unique_ptr<PyObject*[]> objects_;
  Py_ssize_t count_ = 0;
};

// A global that lives until the process ends: no destructor of it runs.
template <typename T>
class NeverDestroyed {
 public:
  constexpr NeverDestroyed() noexcept(std::is_nothrow_default_constructible_v<T>) : value_() {}
  ~NeverDestroyed() {}  // NOLINT(modernize-use-equals-default): that would be none, since the value has one
  NeverDestroyed(const NeverDestroyed&) = delete;
  NeverDestroyed& operator=(const NeverDestroyed&) = delete;

  T& operator*() noexcept { return value_; }
  const T& operator*() const noexcept { return value_; }
  T* operator->() noexcept { return &value_; }
  const T* operator->() const noexcept { return &value_; }

 private:
  union {
    T value_;
  };
};

// One reference more to this object, which nobody lets go again.
inline PyObject* kept_for_good(PyObject* object) noexcept { return Owned::borrowed(object).release(); }

}  // namespace habana_mp

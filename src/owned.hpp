// Python references, counted by types: no other file counts them by hand (tests/host/test_one_place.py).
//
// - A parameter or a result that is borrowed is a PyObject*.
// - A result that is a new reference is an Owned. Functions that CPython calls (stubs, slots, methods) return a
//   PyObject* and end in `release`. So do functions that pass on the result of a call (engine/call.hpp,
//   engine/originals.hpp): it comes from CPython and goes back there.
// - A global that holds references is a NeverDestroyed: when the program ends, the interpreter is gone.
// - An object that is held until the process ends, without a particular owner, is `immortal`.
//
// A pointer to a CPython struct, such as PyFrameObject*, is held as a PyObject* and cast where it is used.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

namespace habana_mp {

// One reference, or none. Releasing it may run other code: finalizers, callbacks of weak references. An exception that
// is set stays set.
class Owned {
 public:
  constexpr Owned() noexcept = default;
  constexpr Owned(std::nullptr_t) noexcept {}
  // Takes over a new reference, as CPython's functions return it, or null.
  constexpr explicit Owned(PyObject* new_reference) noexcept : object_(new_reference) {}
  // Returns a new reference to an object that has another owner.
  [[nodiscard]] static Owned borrowed(PyObject* object) noexcept {
    Py_INCREF(object);
    return Owned(object);
  }
  // The same for an object that may be null.
  [[nodiscard]] static Owned borrowed_or_null(PyObject* object) noexcept {
    Py_XINCREF(object);
    return Owned(object);
  }

  Owned(Owned&& other) noexcept : object_(other.release()) {}
  // The former reference is released last, when the new one is in place.
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
  // Passes the reference to the caller.
  [[nodiscard]] PyObject* release() noexcept { return std::exchange(object_, nullptr); }
  void reset() noexcept { *this = nullptr; }
  explicit operator bool() const noexcept { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

// Several references, adjacent in memory as CPython takes arguments, with room for `most`.
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

// A global that lives until the process ends: its destructor never runs.
template <typename T>
class NeverDestroyed {
 public:
  constexpr NeverDestroyed() noexcept(std::is_nothrow_default_constructible_v<T>) : value_() {}
  ~NeverDestroyed() {}  // NOLINT(modernize-use-equals-default): a default one would be deleted
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

// While one of these lives, CPython collects no garbage: a collection runs code of other objects.
class NoCollection {
 public:
  NoCollection() : was_on_(PyGC_Disable() != 0) {}
  ~NoCollection() {
    if (was_on_) PyGC_Enable();
  }
  NoCollection(const NoCollection&) = delete;
  NoCollection& operator=(const NoCollection&) = delete;

 private:
  bool was_on_;
};

// Returns the object with one more reference, which is never released.
inline PyObject* immortal(PyObject* object) noexcept { return Owned::borrowed(object).release(); }

}  // namespace habana_mp

// Watching calls of functions that are not covered: a stub of ours sees each call and hands it on.
#pragma once

#include <string>

#include "host/callables.hpp"

namespace habana_mp::host {

// A builtin. It may have any calling convention: where the interpreter would inline a call, the builtin gets a
// definition of ours with the same C function and other flags.
class WatchedBuiltin {
 public:
  // False with an exception set where it is no builtin, or may not be written to.
  static bool check(PyObject* object, MemoryMap& memory);

  void watch(PyObject* builtin, vectorcallfunc stub);
  void stop() noexcept;
  // Forgets the builtin, too: no call of it may be under way.
  void forget() noexcept;

  [[nodiscard]] bool is_watched() const { return is_watched_; }
  [[nodiscard]] PyObject* object() const { return object_->get(); }
  PyObject* call(PyObject* const* values, std::size_t flagged_count, PyObject* keywords) const;

 private:
  NeverDestroyed<Owned> object_;  // `forget` alone lets it go
  vectorcallfunc original_slot_ = nullptr;
  PyMethodDef* original_definition_ = nullptr;
  PyMethodDef definition_{};
  std::string text_;         // of our definition, where the builtin tells a signature
  bool is_watched_ = false;  // afterwards the rest stays: a call may be under way
};

// A method of C. Every call of it, bound or not, goes through its definition.
class WatchedMethod {
 public:
  // False with an exception set where it is none of this calling convention, or may not be written to.
  static bool check(PyObject* method, int flags, MemoryMap& memory);

  void watch(PyObject* method, PyCFunction stub);
  void stop() noexcept;

  [[nodiscard]] bool is_watched() const { return definition_ != nullptr; }
  PyObject* call(PyObject* self, PyObject* argument) const { return original_(self, argument); }
  PyObject* call(PyObject* self, PyObject* arguments, PyObject* keywords) const {
    return reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void*>(original_))(self, arguments, keywords);
  }

 private:
  PyMethodDef* definition_ = nullptr;
  PyCFunction original_ = nullptr;  // stays: a call under way still needs it
};

inline PyCFunction as_function(PyCFunctionWithKeywords stub) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(stub));
}

// Tensor.data: reading it and assigning to it, each by itself.
class WatchedData {
 public:
  static bool check(MemoryMap& memory);  // false with an exception set

  void watch_reading(getter stub);
  void watch_assigning(setter stub);
  void stop() noexcept;

  PyObject* read(PyObject* self, void* closure) const { return getter_(self, closure); }
  int assign(PyObject* self, PyObject* value, void* closure) const { return setter_(self, value, closure); }

 private:
  getter getter_ = nullptr;
  setter setter_ = nullptr;
  bool reading_is_watched_ = false;
  bool assigning_is_watched_ = false;
};

// A Python function, whose identity stays what it is. CPython 3.11 runs most calls that Python code writes out past the
// slot: habana_mp/patches/direct_calls.py brings these to it.
class WatchedFunction {
 public:
  // True if it is called as CPython calls every Python function. No exception is set.
  static bool check(PyObject* function, MemoryMap& memory);
  // True if another function than CPython's is in its slot.
  static bool is_watched_by_anybody(PyObject* function) noexcept;

  // A call is answered by `answering`: the function, or another one with the code that the function had.
  void watch(PyObject* function, PyObject* answering, vectorcallfunc stub);
  void exchange_stub(vectorcallfunc stub) noexcept;
  void stop() noexcept;

  [[nodiscard]] bool is_watched() const { return static_cast<bool>(*function_); }
  PyObject* call(PyObject* const* values, std::size_t flagged_count, PyObject* keywords) const {
    return original_(answering_->get(), values, flagged_count, keywords);
  }

 private:
  NeverDestroyed<Owned> function_;   // `stop` alone lets it go
  NeverDestroyed<Owned> answering_;  // stays: a call may be under way
  vectorcallfunc original_ = nullptr;
};

}  // namespace habana_mp::host

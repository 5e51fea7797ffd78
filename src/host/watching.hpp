// Watching calls of functions that are not covered: a stub of ours sees each call and hands it on.
#pragma once

#include <string>

#include "from_c.hpp"
#include "host/callables.hpp"

namespace habana_mp::host {

// A builtin. It may have any calling convention: where the interpreter would inline a call, the builtin gets a
// definition of ours with the same C function and other flags.
class WatchedBuiltin {
 public:
  // False with an exception set where it is no builtin, or may not be written to.
  static bool check(PyObject* object, MemoryMap& memory);

  // Makes what `watch` needs memory for. To be called before it; changes nothing of the builtin.
  void prepare(PyObject* builtin);
  void watch(PyObject* builtin, FromC<vectorcallfunc> stub) noexcept;
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

// What stands in the definition of a method of C, of any calling convention.
class MethodStub {
 public:
  template <typename Function>
  MethodStub(FromC<Function> stub) noexcept : function_(stub.as_method()) {}
  [[nodiscard]] PyCFunction pointer() const noexcept { return function_; }

 private:
  PyCFunction function_;
};

// A method of C. Every call of it, bound or not, goes through its definition.
class WatchedMethod {
 public:
  // False with an exception set where it is none of this calling convention, or may not be written to.
  static bool check(PyObject* method, int flags, MemoryMap& memory);

  void watch(PyObject* method, MethodStub stub) noexcept;
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

// Tensor.data: reading it and assigning to it, each by itself.
class WatchedData {
 public:
  static bool check(MemoryMap& memory);  // false with an exception set

  void watch_reading(FromC<getter> stub) noexcept;
  void watch_assigning(FromC<setter> stub) noexcept;
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
// slot: habana_mp/patches/tools/direct_calls.py brings these to it.
class WatchedFunction {
 public:
  // True if it is called as CPython calls every Python function. No exception is set.
  static bool check(PyObject* function, MemoryMap& memory);
  // True if another function than CPython's is in its slot.
  static bool is_watched_by_anybody(PyObject* function) noexcept;

  // A call is answered by `answering`: the function, or another one with the code that the function had.
  void watch(PyObject* function, PyObject* answering, FromC<vectorcallfunc> stub) noexcept;
  void exchange_stub(FromC<vectorcallfunc> stub) noexcept;
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

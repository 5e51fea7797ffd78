// Taps: calls of functions that are not targets are seen by a stub, which passes them on.
#pragma once

#include <string>

#include "from_c.hpp"
#include "host/callables.hpp"

namespace habana_mp::host {

// A builtin with any calling convention. If the interpreter would inline its calls, the builtin gets a new definition
// with the same C function and other flags.
class TappedBuiltin {
 public:
  // False with an exception set if it is no builtin.
  static bool check(PyObject* object);

  // Allocates what `tap` needs. Call it before `tap`. Does not change the builtin.
  void prepare(PyObject* builtin);
  void tap(PyObject* builtin, FromC<vectorcallfunc> stub) noexcept;
  void stop() noexcept;
  // Stops and releases the builtin. No call of it may be running.
  void forget() noexcept;

  [[nodiscard]] bool is_tapped() const { return is_tapped_; }
  [[nodiscard]] PyObject* object() const { return object_->get(); }
  PyObject* call(PyObject* const* values, std::size_t flagged_count, PyObject* keywords) const;

 private:
  NeverDestroyed<Owned> object_;  // released by `forget` only
  vectorcallfunc original_slot_ = nullptr;
  PyMethodDef* original_definition_ = nullptr;
  PyMethodDef definition_{};
  std::string text_;        // documentation of the new definition, if the builtin has a signature
  bool is_tapped_ = false;  // the other members outlive it: a call may be running
};

// The stub in the definition of a C method with any calling convention.
class MethodStub {
 public:
  template <typename Function>
  MethodStub(FromC<Function> stub) noexcept : function_(stub.as_method()) {}
  [[nodiscard]] PyCFunction pointer() const noexcept { return function_; }

 private:
  PyCFunction function_;
};

// A C method. Every call of it, bound or not, goes through its definition.
class TappedMethod {
 public:
  // False with an exception set if it has another calling convention.
  static bool check(PyObject* method, int flags);

  void tap(PyObject* method, MethodStub stub) noexcept;
  void stop() noexcept;

  [[nodiscard]] bool is_tapped() const { return definition_ != nullptr; }
  PyObject* call(PyObject* self, PyObject* argument) const { return original_(self, argument); }
  PyObject* call(PyObject* self, PyObject* arguments, PyObject* keywords) const {
    return reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void*>(original_))(self, arguments, keywords);
  }

 private:
  PyMethodDef* definition_ = nullptr;
  PyCFunction original_ = nullptr;  // kept for calls that are still running
};

// Tensor.data. Reading and assigning are tapped separately.
class TappedData {
 public:
  void tap_reading(FromC<getter> stub) noexcept;
  void tap_assigning(FromC<setter> stub) noexcept;
  void stop() noexcept;

  PyObject* read(PyObject* self, void* closure) const { return getter_(self, closure); }
  int assign(PyObject* self, PyObject* value, void* closure) const { return setter_(self, value, closure); }

 private:
  getter getter_ = nullptr;
  setter setter_ = nullptr;
  bool reading_is_tapped_ = false;
  bool assigning_is_tapped_ = false;
};

// A Python function, which keeps its identity. In CPython 3.11 most calls from Python code bypass the slot.
// habana_mp/patches/tools/direct_calls.py sends these calls to it.
class TappedFunction {
 public:
  // True if the function has CPython's own slot. Sets no exception.
  static bool check(PyObject* function);
  // True if its slot holds another function than CPython's.
  static bool is_tapped_by_anybody(PyObject* function) noexcept;

  // `answering` runs each call: the function itself, or another one with the code that the function had.
  void tap(PyObject* function, PyObject* answering, FromC<vectorcallfunc> stub) noexcept;
  void exchange_stub(FromC<vectorcallfunc> stub) noexcept;
  void stop() noexcept;

  [[nodiscard]] bool is_tapped() const { return static_cast<bool>(*function_); }
  PyObject* call(PyObject* const* values, std::size_t flagged_count, PyObject* keywords) const {
    return original_(answering_->get(), values, flagged_count, keywords);
  }

 private:
  NeverDestroyed<Owned> function_;   // released by `stop` only
  NeverDestroyed<Owned> answering_;  // kept for calls that are still running
  vectorcallfunc original_ = nullptr;
};

}  // namespace habana_mp::host

// Taps: calls of functions that are not targets are seen by a stub, which passes them on.
#pragma once

#include <string>
#include <utility>

#include "atomic_store.hpp"
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

// The place of a pointer to a C function, where a stub is stored. Every call through the place goes to the stub.
template <typename Function>
class TappedPointer {
 public:
  template <typename Stub>
  void tap(Function* place, const Stub& stub) noexcept {
    if (is_tapped()) return;
    place_ = place;
    original_ = *place;
    store(place, stub.pointer());
  }
  void stop() noexcept {
    if (is_tapped()) store(std::exchange(place_, nullptr), original_);
  }
  [[nodiscard]] bool is_tapped() const { return place_ != nullptr; }
  [[nodiscard]] Function original() const { return original_; }

 private:
  Function* place_ = nullptr;
  Function original_ = nullptr;  // kept for calls that are still running
};

// A C method. Every call of it, bound or not, goes through its definition.
class TappedMethod : public TappedPointer<PyCFunction> {
 public:
  // False with an exception set if it has another calling convention.
  static bool check(PyObject* method, int flags);

  void tap(PyObject* method, MethodStub stub) noexcept;
  PyObject* call(PyObject* self, PyObject* argument) const { return original()(self, argument); }
  PyObject* call(PyObject* self, PyObject* arguments, PyObject* keywords) const {
    return reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void*>(original()))(self, arguments, keywords);
  }
};

// A Python function, which keeps its identity. In CPython 3.11 a call with arguments that are not unpacked bypasses the
// slot if it comes from Python code.
class TappedFunction {
 public:
  // True if the function has CPython's own slot. Sets no exception.
  static bool check(PyObject* function);

  void tap(PyObject* function, FromC<vectorcallfunc> stub) noexcept;
  void exchange_stub(FromC<vectorcallfunc> stub) noexcept;
  void stop() noexcept;

  [[nodiscard]] bool is_tapped() const { return is_tapped_; }
  PyObject* call(PyObject* const* values, std::size_t flagged_count, PyObject* keywords) const {
    return original_(function_->get(), values, flagged_count, keywords);
  }

 private:
  NeverDestroyed<Owned> function_;  // kept for calls that are still running
  vectorcallfunc original_ = nullptr;
  bool is_tapped_ = false;
};

}  // namespace habana_mp::host

// The border between C and this core: no C++ exception crosses it.
//
// CPython, torch and the C library call functions of this core through pointers: stubs, methods, getters, destructors.
// An exception that leaves such a function unwinds C code, or ends the process. So every pointer that is passed to C is
// made by `from_c`, which catches the exception and sets a Python exception instead: MemoryError when memory runs out,
// RuntimeError for most other errors.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <cxxabi.h>

#include <type_traits>

#include "errors.hpp"

namespace habana_mp {

// Sets a Python exception for the C++ exception that is being handled. Keeps a Python exception that is already set.
// The caller holds the GIL.
void set_python_error() noexcept;

namespace detail {

// Returns the value that means failure. A function without a result cannot fail: its Python exception is written to
// sys.unraisablehook.
template <typename Result>
Result failed() noexcept {
  if constexpr (std::is_void_v<Result>) {
    print_error(nullptr);
  } else if constexpr (std::is_pointer_v<Result>) {
    return nullptr;
  } else {
    static_assert(std::is_same_v<Result, int>, "what C takes for a failure of this type is not known");
    return -1;
  }
}

template <auto function, typename Type = decltype(function)>
struct Guarded;

template <auto function, typename Result, typename... Arguments>
struct Guarded<function, Result (*)(Arguments...)> {
  static Result call(Arguments... arguments) {
    try {
      return function(arguments...);
    } catch (const abi::__forced_unwind&) {
      throw;  // the thread is being ended
    } catch (...) {
      set_python_error();
    }
    return failed<Result>();
  }
};

// `first` returns the first argument, and is a compile-time constant.
template <auto function, auto first, typename Type = decltype(function)>
struct GuardedWith;

template <auto function, auto first, typename Result, typename First, typename... Arguments>
struct GuardedWith<function, first, Result (*)(First, Arguments...)> {
  static_assert(noexcept(first()));
  static Result call(Arguments... arguments) { return Guarded<function>::call(first(), arguments...); }
};

}  // namespace detail

// A pointer to a function that C may call. Only `from_c` and `from_c_with` make one.
template <typename Function>
class FromC {
 public:
  [[nodiscard]] constexpr Function pointer() const noexcept { return function_; }
  // Returns the same function with the type in which CPython stores all methods.
  [[nodiscard]] PyCFunction as_method() const noexcept {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function_));
  }

  constexpr FromC() noexcept = default;  // null

 private:
  template <auto function>
  friend constexpr auto from_c_pointer() noexcept;
  template <auto function, auto first>
  friend constexpr auto from_c_pointer_with() noexcept;
  constexpr explicit FromC(Function function) noexcept : function_(function) {}

  Function function_ = nullptr;
};

template <auto function>
constexpr auto from_c_pointer() noexcept {
  using Guarded = detail::Guarded<function>;
  return FromC<decltype(&Guarded::call)>(&Guarded::call);
}

template <auto function, auto first>
constexpr auto from_c_pointer_with() noexcept {
  using Guarded = detail::GuardedWith<function, first>;
  return FromC<decltype(&Guarded::call)>(&Guarded::call);
}

// The version of `function` that C may call. It costs nothing if no exception is thrown.
template <auto function>
inline constexpr auto from_c = from_c_pointer<function>();

// Like `from_c`, with the first argument fixed: many C functions then share one function of this core.
template <auto function, auto first>
inline constexpr auto from_c_with = from_c_pointer_with<function, first>();

}  // namespace habana_mp

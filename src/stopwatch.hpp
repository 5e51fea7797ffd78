// How long a call takes.
#pragma once

#include <Python.h>

#include <chrono>

namespace habana_mp {

// In seconds, of a call that returns a new reference; negative where it fails, with the exception set.
template <typename Call>
double time_of(Call call) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  PyObject* result = call();
  const std::chrono::duration<double> taken = Clock::now() - begin;
  if (result == nullptr) return -1.0;
  Py_DECREF(result);
  return taken.count();
}

}  // namespace habana_mp

// Measures how long a call takes.
#pragma once

#include <chrono>

#include "owned.hpp"

namespace habana_mp {

// Returns the seconds that `call` takes, or a negative number with the exception set if it fails. `call` must return a
// new reference.
template <typename Call>
double time_of(Call call) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  const Owned result(call());
  const std::chrono::duration<double> taken = Clock::now() - begin;
  return result ? taken.count() : -1.0;
}

}  // namespace habana_mp

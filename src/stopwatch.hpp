// How long a call takes.
#pragma once

#include <chrono>

#include "owned.hpp"

namespace habana_mp {

// In seconds, of a call that returns a new reference; negative where it fails, with the exception set.
template <typename Call>
double time_of(Call call) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  const Owned result(call());
  const std::chrono::duration<double> taken = Clock::now() - begin;
  return result ? taken.count() : -1.0;
}

}  // namespace habana_mp

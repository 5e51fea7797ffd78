// The steps of a decision, for debugging (the environment variable HABANA_MP_TRACE).
#pragma once

#include <source_location>

namespace habana_mp::rules {

using Tracer = void (*)(const char* step, const char* detail, const std::source_location& where) noexcept;

// Receives each step while calls are traced; null otherwise.
inline Tracer tracer = nullptr;

// Passes a step to the tracer, with the line that calls this function or passes its own `where`.
inline void trace(const char* step, const char* detail = "",
                  const std::source_location& where = std::source_location::current()) {
  if (tracer != nullptr) [[unlikely]]
    tracer(step, detail, where);
}

}  // namespace habana_mp::rules

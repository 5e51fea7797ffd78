// The steps of a decision, for debugging (the environment variable HABANA_MP_TRACE).
#pragma once

namespace habana_mp::rules {

// A line of the source. (clang-tidy 14 does not know std::source_location.)
struct Where {
  const char* file;
  unsigned line;

  // Returns the line that calls this function. As a default argument of another function, it returns the line that
  // calls that function.
  static constexpr Where here(const char* file = __builtin_FILE(), unsigned line = __builtin_LINE()) {
    return {file, line};
  }
};

using Tracer = void (*)(const char* step, const char* detail, Where where) noexcept;

// Receives each step while calls are traced; null otherwise.
inline Tracer tracer = nullptr;

// Passes a step to the tracer, with the line that calls this function or passes its own `where`.
inline void trace(const char* step, const char* detail = "", Where where = Where::here()) {
  if (tracer != nullptr) [[unlikely]]
    tracer(step, detail, where);
}

}  // namespace habana_mp::rules

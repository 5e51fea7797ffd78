// Casts whose stores bypass the caches, for the x86 files. Each file compiles its own copy with its own flags.
#pragma once

#include <immintrin.h>

#include <cstddef>

namespace habana_mp::kernels {

// The distance in bytes between a prefetch and the load that it is for, chosen for this processor.
extern const std::size_t source_lead;

namespace {  // NOLINT(google-build-namespaces): see above

// Runs as many whole steps of `step` elements as fit in `count`. Returns the number of elements that were cast.
// Prefetching past the end of the source is harmless.
template <class Cast, std::size_t step, class RunStep>
inline std::size_t streamed_steps(const unsigned char* in, unsigned char* out, std::size_t count, RunStep run_step) {
  constexpr std::size_t line = 64;
  constexpr std::size_t bytes = step * sizeof(typename Cast::In);
  const std::size_t lead = source_lead;
  const std::size_t end = count / step * step;
  for (std::size_t done = 0; done < end; done += step) {
    for (std::size_t at = 0; at < bytes; at += line) {
      _mm_prefetch(reinterpret_cast<const char*>(in + lead + at), _MM_HINT_NTA);
    }
    run_step(in, out);
    in += bytes;
    out += step * sizeof(typename Cast::Out);
  }
  _mm_sfence();
  return end;
}

}  // namespace
}  // namespace habana_mp::kernels

// Casts between the floating-point types of mixed precision. Pure C++: no Python, no torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/job.hpp"
#include "kernels/types.hpp"

namespace habana_mp::kernels {

// Casts `count` contiguous elements with round-to-nearest-even. Denormals are preserved whatever MXCSR says. A NaN may
// become any other NaN. `source` and `target` must not overlap. Uses at most `threads` threads; small arrays are cast
// on the calling thread alone. Thread-safe, safe after fork, never throws.
void cast(const void* source, Float from, void* target, Float to, std::size_t count, unsigned threads) noexcept;

// Casts many arrays of any strides in one call: the threads share the bytes of all of them. No target may overlap
// another target or a source. Writes to `Job::begin`, so two calls must not use the same jobs at the same time.
void cast_many(std::span<Job> jobs, unsigned threads) noexcept;

// Like `cast_many`, for casts right before or after an operation of the library whose team of threads helps
// (threads.hpp). The team is awake then, or will be woken anyway.
void cast_many_beside_team(std::span<Job> jobs, unsigned threads) noexcept;

// Returns the name of the instruction set in use: "scalar", "avx2", "avx512", "avx512_bf16", "amx", "neon" or
// "neon_bf16". It is chosen once, from the processor and from the environment variable HABANA_MP_KERNELS, which forces
// one.
const char* path() noexcept;

}  // namespace habana_mp::kernels

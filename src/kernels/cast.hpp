// Casts between the floating types of mixed precision: pure C++, no Python, no torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/job.hpp"
#include "kernels/types.hpp"

namespace habana_mp::kernels {

// Casts `count` contiguous elements, round-to-nearest-even, denormals kept whatever MXCSR says; any NaN may stand for
// a NaN. `source` and `target` must not overlap. `threads` is the most to use; small arrays stay on the calling thread.
// Thread-safe, safe after fork, never throws.
void cast(const void* source, Float from, void* target, Float to, std::size_t count, unsigned threads) noexcept;

// The same for many arrays of any strides at once: the threads share out the bytes of all of them. No target may
// overlap another target or a source. Writes to the jobs' own notes, so two calls must not share them at once.
void cast_many(std::span<Job> jobs, unsigned threads) noexcept;

// The same where an operation of the library whose team (threads.hpp) helps comes right before or after: the team is
// awake, or is to be woken anyway.
void cast_many_beside_team(std::span<Job> jobs, unsigned threads) noexcept;

// Casts `count` contiguous float32 to bfloat16 and rounds stochastically: up or down, the likelier the nearer. What
// bfloat16 can hold stays as it is. The bits depend on `seed`, on an element's value and on its place in the array, and
// on nothing else. The rest as for `cast`.
void cast_stochastically(const void* source, void* target, std::size_t count, std::uint64_t seed,
                         unsigned threads) noexcept;

// The instruction set in use: "scalar", "avx2", "avx512", "avx512_bf16", "amx", "neon" or "neon_bf16". Chosen once,
// from the processor and from the environment variable HABANA_MP_KERNELS, which forces one.
const char* path() noexcept;

}  // namespace habana_mp::kernels

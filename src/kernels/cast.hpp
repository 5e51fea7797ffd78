// Casts between the floating-point types of mixed precision. Pure C++: no Python, no torch.
#pragma once

#include <cstddef>

#include "kernels/job.hpp"
#include "kernels/types.hpp"

namespace habana_mp::kernels {

// Casts with round-to-nearest-even. Denormals are preserved whatever MXCSR says. A NaN may become any other NaN. Source
// and target must not overlap. Uses at most `threads` threads; small arrays are cast on the calling thread alone.
// Thread-safe, safe after fork, never throws.
void cast(const Job& job, unsigned threads) noexcept;

// Returns the name of the instruction set in use: "scalar", "avx2", "avx512", "avx512_bf16", "amx", "neon" or
// "neon_bf16". It is chosen once, from the processor and from the environment variable HABANA_MP_KERNELS, which forces
// one.
const char* path() noexcept;

}  // namespace habana_mp::kernels

// Casts between the floating types of mixed precision: pure C++, no Python, no torch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace habana_mp::kernels {

enum class Float : std::uint8_t { f32, bf16, f16 };

constexpr std::size_t size_of(Float type) { return type == Float::f32 ? 4 : 2; }

// Casts `count` contiguous elements, round-to-nearest-even, denormals kept whatever MXCSR says; any NaN may stand for
// a NaN. `source` and `target` must not overlap. `threads` is the most to use; small arrays stay on the calling thread.
// Thread-safe, safe after fork, never throws.
void cast(const void* source, Float from, void* target, Float to, std::size_t count, unsigned threads) noexcept;

// The instruction set in use: "scalar", "avx2", "avx512", "avx512_bf16" or "neon". Chosen once, from the processor and
// from the environment variable HABANA_MP_KERNELS, which forces one.
const char* path() noexcept;

}  // namespace habana_mp::kernels

// The floating-point types of mixed precision.
#pragma once

#include <cstddef>
#include <cstdint>

namespace habana_mp::kernels {

enum class Float : std::uint8_t { f32, bf16, f16 };

constexpr std::size_t size_of(Float type) { return type == Float::f32 ? 4 : 2; }

}  // namespace habana_mp::kernels

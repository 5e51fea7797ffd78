// The largest magnitude among the values of an array. Pure C++: no Python, no torch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/types.hpp"

namespace habana_mp::kernels {

// Returns the bits without the sign of the value with the largest magnitude. Infinities are larger than all numbers,
// and a NaN is larger than infinities. Returns 0 for an empty array. Reads each value once, on the calling thread.
std::uint32_t largest_magnitude(const void* values, Float type, std::size_t count) noexcept;

// The bits of infinity.
constexpr std::uint32_t infinity_of(Float type) {
  return type == Float::f32 ? 0x7f800000U : type == Float::bf16 ? 0x7f80U : 0x7c00U;
}

}  // namespace habana_mp::kernels

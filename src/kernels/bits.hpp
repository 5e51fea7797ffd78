// Casts of single elements in integer arithmetic. They use no floating-point instructions, so FTZ, DAZ and the rounding
// mode cannot change a result. In an anonymous namespace because each instruction set's file compiles its own copy with
// its own flags.
#pragma once

#include <cstddef>
#include <cstdint>

namespace habana_mp::kernels {
namespace {  // NOLINT(google-build-namespaces): see above

inline std::uint16_t bf16_of_f32(std::uint32_t x) {
  const std::uint32_t rounded = x + 0x7fffU + ((x >> 16) & 1U);
  // Rounding could carry a NaN's mantissa into infinity or into the sign bit.
  const bool nan = (x & 0x7fffffffU) > 0x7f800000U;
  return static_cast<std::uint16_t>(nan ? 0x7fc0U : rounded >> 16);
}

inline std::uint32_t f32_of_bf16(std::uint16_t x) { return static_cast<std::uint32_t>(x) << 16; }

inline std::uint16_t f16_of_f32(std::uint32_t x) {
  const std::uint32_t sign = (x >> 16) & 0x8000U;
  const std::uint32_t magnitude = x & 0x7fffffffU;
  std::uint32_t result = 0;
  if (magnitude > 0x7f800000U) {
    result = 0x7e00U;
  } else if (magnitude >= 0x47800000U) {  // 2^16 and above; values from 65520 up round to infinity below
    result = 0x7c00U;
  } else if (magnitude >= 0x38800000U) {  // 2^-14 and above: a normal number in float16
    result = (magnitude + 0xfffU + ((magnitude >> 13) & 1U) - 0x38000000U) >> 13;
  } else if (magnitude >= 0x33000000U) {  // 2^-25 and above: a denormal in float16, or a tie with zero
    const std::uint32_t shift = 126U - (magnitude >> 23);
    const std::uint32_t mantissa = (magnitude & 0x7fffffU) | 0x800000U;
    const std::uint32_t rest = mantissa & ((1U << shift) - 1U);
    const std::uint32_t half = 1U << (shift - 1U);
    result = mantissa >> shift;
    if (rest > half || (rest == half && (result & 1U) != 0U)) {
      ++result;
    }
  }
  return static_cast<std::uint16_t>(sign | result);
}

inline std::uint32_t f32_of_f16(std::uint16_t x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x & 0x8000U) << 16;
  const std::uint32_t magnitude = x & 0x7fffU;
  if (magnitude >= 0x7c00U) return sign | 0x7f800000U | (magnitude & 0x3ffU) << 13;
  if (magnitude >= 0x400U) return sign | ((magnitude << 13) + 0x38000000U);
  if (magnitude == 0U) return sign;
  const auto shift = static_cast<std::uint32_t>(__builtin_clz(magnitude)) - 21U;  // moves the highest set bit to bit 10
  return sign | (((magnitude << shift) & 0x3ffU) << 13) | ((113U - shift) << 23);
}

// The cast of one element. `cast_each` applies it to arrays of any alignment.
struct F32ToBf16 {
  using In = std::uint32_t;
  using Out = std::uint16_t;
  static Out one(In x) { return bf16_of_f32(x); }
};
struct F32ToF16 {
  using In = std::uint32_t;
  using Out = std::uint16_t;
  static Out one(In x) { return f16_of_f32(x); }
};
struct Bf16ToF32 {
  using In = std::uint16_t;
  using Out = std::uint32_t;
  static Out one(In x) { return f32_of_bf16(x); }
};
struct Bf16ToF16 {
  using In = std::uint16_t;
  using Out = std::uint16_t;
  static Out one(In x) { return f16_of_f32(f32_of_bf16(x)); }
};
struct F16ToF32 {
  using In = std::uint16_t;
  using Out = std::uint32_t;
  static Out one(In x) { return f32_of_f16(x); }
};
struct F16ToBf16 {
  using In = std::uint16_t;
  using Out = std::uint16_t;
  static Out one(In x) { return bf16_of_f32(f32_of_f16(x)); }
};

template <class Cast>
inline void cast_each(const unsigned char* source, unsigned char* target, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    typename Cast::In in;
    __builtin_memcpy(&in, source + i * sizeof in, sizeof in);
    const typename Cast::Out out = Cast::one(in);
    __builtin_memcpy(target + i * sizeof out, &out, sizeof out);
  }
}

// Returns the number of elements of `size` bytes before the next multiple of `boundary`, which must be cast before
// aligned stores can begin. Returns 0 if no whole number of elements reaches the boundary.
inline std::size_t before_boundary(const unsigned char* target, std::size_t boundary, std::size_t size) {
  const std::size_t past = reinterpret_cast<std::uintptr_t>(target) % boundary;
  return past % size == 0 ? (boundary - past) % boundary / size : 0;
}

}  // namespace
}  // namespace habana_mp::kernels

// The kinds of arguments that rules distinguish.
#pragma once

#include <cstdint>

namespace habana_mp {

enum class Kind : std::uint8_t {
  other,  // not a tensor, or one that is never cast: integer, bool, quantized
  f32,
  bf16,
  f16,
  wide,      // float64 or complex, also a complex number: no input of such a call is cast
  sequence,  // a list or tuple that may hold tensors
  dtype,     // a torch.dtype: an explicit dtype= passed by position
};

// Sets of kinds are bit masks.
using Kinds = std::uint8_t;
constexpr Kinds bit(Kind kind) { return static_cast<Kinds>(1U << static_cast<unsigned>(kind)); }
inline constexpr Kinds floating = bit(Kind::f32) | bit(Kind::bf16) | bit(Kind::f16);
inline constexpr Kinds lower_kinds = bit(Kind::bf16) | bit(Kind::f16);
constexpr bool is_floating(Kind kind) { return (bit(kind) & floating) != 0; }
constexpr bool is_lower(Kind kind) { return kind == Kind::bf16 || kind == Kind::f16; }

}  // namespace habana_mp

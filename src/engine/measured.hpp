// Does lowering pay? On a CPU a small GEMM may take longer in bfloat16. Where the user wants it so, each shape is
// measured once and left as it is written if that is faster.
#pragma once

#include <cstdint>

#include "engine/call.hpp"
#include "engine/target.hpp"

namespace habana_mp::engine {

enum class Verdict : std::uint8_t {
  unknown,  // not used often enough: what is kept of weights is still to come
  due,      // to be measured now
  lower,
  as_written,
};

// Switches it on or off, and forgets what was measured.
void set_skips_slower(bool on) noexcept;
bool skips_slower() noexcept;

// What a measurement holds for: the operation, the precision, the weights' sizes, the magnitude of the other inputs,
// the options. 0 where nothing can be told of a call.
std::uint64_t shape_of(const Target& target, tensor::Kind to, const Arguments& arguments);

Verdict verdict_on(std::uint64_t shape);
void set_verdict(std::uint64_t shape, Verdict verdict);

// For tests: what every measurement is to say, without one; `unknown` for what is measured.
void assume_verdict(Verdict verdict) noexcept;

}  // namespace habana_mp::engine

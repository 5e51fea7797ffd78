// Does lowering pay? On a CPU a small GEMM may take longer in bfloat16. Where the user wants it so, each shape is
// measured once and left as it is written if that is faster.
#pragma once

#include <cstdint>

#include "engine/reading.hpp"

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

// Is this call to be left as it is written, because that is faster? An interrupt leaves its exception.
bool is_slower_lowered(const Call& call, Kind to);

// For tests: what every measurement is to say, without one; `unknown` for what is measured.
void assume_verdict(Verdict verdict) noexcept;

}  // namespace habana_mp::engine

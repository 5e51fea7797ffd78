// Products and convolutions that can be computed from a packed weight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace habana_mp::weights {

enum class Packs : std::uint8_t {
  nothing,
  linear,  // F.linear(input, weight, bias)
  conv2d,  // F.conv2d(input, weight, bias, stride, padding, dilation, groups)
  addmm,   // torch.addmm(bias, input, weight)
  mm,      // torch.mm(input, weight)
  matmul,  // torch.matmul(input, weight)
};
inline constexpr std::size_t packs_count = 6;

// Returns the member with this name; "" is `nothing`. Throws std::invalid_argument for any other name.
Packs packs_named(const std::string& name);

}  // namespace habana_mp::weights

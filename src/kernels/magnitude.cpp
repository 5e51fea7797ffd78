#include "kernels/magnitude.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace habana_mp::kernels {

namespace {

// Signed integers, since SSE2 has a maximum of signed 16-bit integers and no other. Several maxima side by side, which
// the compiler holds in vector registers.
template <typename Bits, std::size_t lanes>
Bits largest(const unsigned char* values, std::size_t count, Bits without_sign) noexcept {
  std::array<Bits, lanes> most{};
  std::size_t done = 0;
  for (; done + lanes <= count; done += lanes) {
    std::array<Bits, lanes> block;
    std::memcpy(block.data(), values + done * sizeof(Bits), sizeof block);
    for (std::size_t i = 0; i < lanes; ++i) {
      const auto magnitude = static_cast<Bits>(block[i] & without_sign);
      most[i] = most[i] < magnitude ? magnitude : most[i];
    }
  }
  Bits found = *std::max_element(most.begin(), most.end());
  for (; done < count; ++done) {
    Bits value = 0;
    std::memcpy(&value, values + done * sizeof(Bits), sizeof value);
    found = std::max(found, static_cast<Bits>(value & without_sign));
  }
  return found;
}

}  // namespace

std::uint32_t largest_magnitude(const void* values, Float type, std::size_t count) noexcept {
  const auto* bytes = static_cast<const unsigned char*>(values);
  if (type == Float::f32) return static_cast<std::uint32_t>(largest<std::int32_t, 32>(bytes, count, 0x7fffffff));
  return static_cast<std::uint32_t>(largest<std::int16_t, 64>(bytes, count, 0x7fff));
}

}  // namespace habana_mp::kernels

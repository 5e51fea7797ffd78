// Computes how much memory the cached casts of a device may take if the user sets no limit.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

namespace habana_mp::weights {

// All cached casts of a device together may take half of its memory that would be free without them. The other half
// stays for activations, gradients and the contents of mapped files. A reading of the free memory is valid for one
// second while the casts grow by at most a quarter of what it allowed. A refusal is valid for 0.1 seconds, and only for
// casts of at least the refused size: a smaller one causes a new reading.
class MemoryLimit {
 public:
  using FreeMemory = std::function<std::uint64_t()>;

  // Returns true if casts of `bytes` may be added to the `kept` bytes.
  [[nodiscard]] bool allows(std::uint64_t bytes, const FreeMemory& free_memory);
  // Refuses all casts for a while: the memory is needed for other things.
  void refuse();
  // Forgets the readings.
  void forget();

  std::uint64_t kept = 0;  // the size of all cached casts of the device

 private:
  using Clock = std::chrono::steady_clock;

  [[nodiscard]] bool is_known(Clock::time_point now, std::uint64_t wanted) const;

  std::uint64_t allowed_until_ = 0;                 // the size of all casts up to which the last reading is used
  std::uint64_t refused_from_ = ~std::uint64_t{0};  // the size of all casts from which the last reading refuses
  Clock::time_point read_at_;
};
}  // namespace habana_mp::weights

// Computes how much memory the cached casts may take if the user sets no limit.
#pragma once

#include <chrono>
#include <cstdint>

namespace habana_mp::weights {

// All cached casts together may take half of the memory that would be free without them. The other half stays for
// activations, gradients and the contents of mapped files. A reading of the system's files is valid for one second
// while the casts grow by at most a quarter of what it allowed. A refusal is valid for 0.1 seconds, and only for casts
// of at least the refused size: a smaller one causes a new reading.
class MemoryLimit {
 public:
  // Returns true if casts of `bytes` may be added to `kept` bytes.
  [[nodiscard]] bool allows(std::uint64_t kept, std::uint64_t bytes) noexcept;

 private:
  using Clock = std::chrono::steady_clock;

  [[nodiscard]] bool is_known(Clock::time_point now, std::uint64_t wanted) const;

  std::uint64_t allowed_until_ = 0;                 // the size of all casts up to which the last reading is used
  std::uint64_t refused_from_ = ~std::uint64_t{0};  // the size of all casts from which the last reading refuses
  Clock::time_point read_at_;
};
extern MemoryLimit memory_limit;

}  // namespace habana_mp::weights

// Computes how much memory the kept casts may take where the user gives no limit.
#pragma once

#include <chrono>
#include <cstdint>

namespace habana_mp::weights {

// The kept casts together may take half of the memory that would be free without them. The other half stays for
// activations, gradients and the contents of mapped files. The system's files are read only when the casts have grown
// by a part of what the last reading allowed, or when that reading is old.
class Room {
 public:
  // Returns true if casts of `bytes` may be added to `kept` bytes.
  [[nodiscard]] bool allows(std::uint64_t kept, std::uint64_t bytes) noexcept;

 private:
  using Clock = std::chrono::steady_clock;

  [[nodiscard]] bool is_known(Clock::time_point now, std::uint64_t wanted) const;

  std::uint64_t allowed_until_ = 0;                 // so large may the casts become before the files are read again
  std::uint64_t refused_from_ = ~std::uint64_t{0};  // so large they may not become
  Clock::time_point read_at_;
};
extern Room room;

}  // namespace habana_mp::weights

#include "weights/memory_limit.hpp"

namespace habana_mp::weights {

namespace {

// Casts up to this total size are always cached: a process with torch takes several times as much.
constexpr std::uint64_t negligible = std::uint64_t{32} << 20;

// Casts may use this fraction of what a reading allows before the next reading: other processes take memory meanwhile.
constexpr std::uint64_t part = 4;

constexpr std::chrono::seconds longest_trust{1};
constexpr std::chrono::milliseconds longest_refusal{100};

}  // namespace

bool MemoryLimit::is_known(Clock::time_point now, std::uint64_t wanted) const {
  if (wanted >= refused_from_) return now - read_at_ < longest_refusal;
  return wanted <= allowed_until_ && now - read_at_ < longest_trust;
}

bool MemoryLimit::allows(std::uint64_t bytes, const FreeMemory& free_memory) {
  const std::uint64_t wanted = kept + bytes;
  if (wanted <= negligible) return true;
  const Clock::time_point now = Clock::now();
  if (is_known(now, wanted)) return wanted < refused_from_;
  read_at_ = now;
  const std::uint64_t free = free_memory();
  const std::uint64_t most = kept / 2 + free / 2;
  const bool is_allowed = wanted <= most;
  refused_from_ = is_allowed ? ~std::uint64_t{0} : wanted;
  allowed_until_ = is_allowed ? wanted + (most - wanted) / part : 0;
  return is_allowed;
}

void MemoryLimit::refuse() {
  read_at_ = Clock::now();
  refused_from_ = 0;
}

void MemoryLimit::forget() {
  refused_from_ = ~std::uint64_t{0};
  allowed_until_ = 0;
}

}  // namespace habana_mp::weights

#include "host/memory_map.hpp"

#include <unistd.h>

#include <cinttypes>
#include <cstdio>

#include "host/ledger.hpp"

namespace habana_mp::host {

namespace {

Assumption mappings{"system.mappings", "/proc/self/maps tells which memory may be written to, and which is a file's",
                    "it is there, and tells that a variable of ours may be written to, and a constant may not",
                    "memory is tried: the kernel writes there what is there, or refuses; slices of files that are "
                    "mapped are not told, so "
                    "no casts of weights in such are kept"};

// The kernel answers EFAULT where we would crash. Nobody else writes there meanwhile: what is tried are definitions of
// CPython's and torch's, and we hold the GIL.
bool can_be_rewritten(const void* address) {
  int ends[2] = {-1, -1};
  if (::pipe(ends) != 0) return false;
  constexpr auto size = static_cast<ssize_t>(sizeof(void*));
  const bool done = ::write(ends[1], address, sizeof(void*)) == size &&
                    ::read(ends[0], const_cast<void*>(address), sizeof(void*)) == size;
  ::close(ends[0]);
  ::close(ends[1]);
  return done;
}

const void* const constant = nullptr;
const void* variable = nullptr;

}  // namespace

MemoryMap::MemoryMap() {
  if (mappings.is_broken()) {
    mappings.settle(false);
    return;
  }
  if (std::FILE* maps = std::fopen("/proc/self/maps", "r")) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    char mode[5] = {};
    std::uint64_t node = 0;
    char rest[4096];
    while (std::fscanf(maps, "%" SCNxPTR "-%" SCNxPTR " %4s %*s %*s %" SCNu64, &begin, &end, mode, &node) == 4) {
      mappings_.push_back({begin, end, mode[1] == 'w', mode[3] == 's', node != 0});
      if (std::fgets(rest, sizeof rest, maps) == nullptr) break;
    }
    std::fclose(maps);
  }
  const Mapping* of_variable = find(&variable);
  const Mapping* of_constant = find(&constant);
  const bool tells =
      of_variable != nullptr && of_variable->writable && of_constant != nullptr && !of_constant->writable;
  if (!mappings.settle(tells)) mappings_.clear();
}

bool MemoryMap::may_write(const void* address) const {
  if (!is_known()) return can_be_rewritten(address);
  const Mapping* mapping = find(address);
  return mapping != nullptr && mapping->writable;
}

}  // namespace habana_mp::host

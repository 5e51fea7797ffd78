// The mappings of this process.
#pragma once

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <vector>

namespace habana_mp::host {

struct Mapping {
  std::uintptr_t begin;
  std::uintptr_t end;
  bool writable;
  bool shared;  // with other processes
  bool of_file;
};

class MemoryMap {
 public:
  MemoryMap() {
    std::FILE* maps = std::fopen("/proc/self/maps", "r");
    if (maps == nullptr) return;
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

  // False where the system does not tell.
  [[nodiscard]] bool is_known() const { return !mappings_.empty(); }

  [[nodiscard]] const Mapping* find(const void* address) const {
    const auto value = reinterpret_cast<std::uintptr_t>(address);
    for (const Mapping& mapping : mappings_) {
      if (value >= mapping.begin && value + sizeof(void*) <= mapping.end) return &mapping;
    }
    return nullptr;
  }

  // May a pointer be stored there? Yes, where the system does not tell.
  [[nodiscard]] bool may_write(const void* address) const {
    const Mapping* mapping = find(address);
    return !is_known() || (mapping != nullptr && mapping->writable);
  }

 private:
  std::vector<Mapping> mappings_;
};

}  // namespace habana_mp::host

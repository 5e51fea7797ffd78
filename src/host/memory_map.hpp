// The mappings of this process.
#pragma once

#include <cstdint>
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
  MemoryMap();

  // False where the system does not tell.
  [[nodiscard]] bool is_known() const { return !mappings_.empty(); }

  [[nodiscard]] const Mapping* find(const void* address) const {
    const auto value = reinterpret_cast<std::uintptr_t>(address);
    for (const Mapping& mapping : mappings_) {
      if (value >= mapping.begin && value + sizeof(void*) <= mapping.end) return &mapping;
    }
    return nullptr;
  }

  // May a pointer be stored there? Where the system does not tell, it is tried: what is there is written again.
  [[nodiscard]] bool may_write(const void* address) const;

 private:
  std::vector<Mapping> mappings_;
};

}  // namespace habana_mp::host

// The memory mappings of this process.
#pragma once

#include <cstdint>
#include <optional>

namespace habana_mp::host {

struct Mapping {
  std::uintptr_t begin;
  std::uintptr_t end;
  bool shared;  // with other processes
  bool of_file;

  [[nodiscard]] bool holds(const void* address) const {
    const auto value = reinterpret_cast<std::uintptr_t>(address);
    return value >= begin && value < end;
  }
};

// Returns the mapping that holds this address; nullopt if it is unknown.
std::optional<Mapping> find_mapping(const void* address);

}  // namespace habana_mp::host

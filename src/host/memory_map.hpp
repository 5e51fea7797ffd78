// The memory mappings of this process.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace habana_mp::host {

// Returns the whole text of a system file; empty if it cannot be read.
std::string read_all(const char* path);

struct Mapping {
  std::uintptr_t begin;
  std::uintptr_t end;
  bool shared;  // with other processes
  bool of_file;
};

// Returns the mapping that holds this address; nullopt if it is unknown.
std::optional<Mapping> find_mapping(const void* address);

}  // namespace habana_mp::host

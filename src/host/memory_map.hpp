// The memory mappings of this process.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace habana_mp::host {

// Returns the whole text of a system file; empty if it cannot be read.
std::string read_all(const char* path);

struct Mapping {
  std::uintptr_t begin;
  std::uintptr_t end;
  bool writable;
  bool shared;  // with other processes
  bool of_file;
};

// Reads the mappings at first use, since this takes the kernel longer than everything else that convert does.
class MemoryMap {
 public:
  // False if the system does not list the mappings.
  [[nodiscard]] bool is_known() { return !mappings().empty(); }

  [[nodiscard]] const Mapping* find(const void* address);

  // True if the system lists this memory as writable. This stays true once it was: torch and CPython do not protect
  // their memory later.
  [[nodiscard]] bool is_writable(const void* address);
  // True if a pointer may be stored there. If the mappings are not known, this tries it and writes the same value back.
  [[nodiscard]] bool may_write(const void* address);

 private:
  const std::vector<Mapping>& mappings();
  void read();

  std::vector<Mapping> mappings_;
  bool is_read_ = false;
};

}  // namespace habana_mp::host

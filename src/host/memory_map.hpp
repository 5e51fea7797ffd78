// The mappings of this process.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace habana_mp::host {

// Returns the whole text of a file of the system; an empty one where it cannot be read.
std::string read_all(const char* path);

struct Mapping {
  std::uintptr_t begin;
  std::uintptr_t end;
  bool writable;
  bool shared;  // with other processes
  bool of_file;
};

// Read when it is first asked, which takes the kernel longer than all else that convert does.
class MemoryMap {
 public:
  // False where the system does not tell.
  [[nodiscard]] bool is_known() { return !mappings().empty(); }

  [[nodiscard]] const Mapping* find(const void* address);

  // Does the system tell that this memory may be written to? Where it was so once, it is: torch and CPython protect
  // nothing of theirs later.
  [[nodiscard]] bool is_writable(const void* address);
  // May a pointer be stored there? Where the system does not tell, it is tried: what is there is written again.
  [[nodiscard]] bool may_write(const void* address);

 private:
  const std::vector<Mapping>& mappings();
  void read();

  std::vector<Mapping> mappings_;
  bool is_read_ = false;
};

}  // namespace habana_mp::host

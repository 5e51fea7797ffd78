// The memory that this process may still take.
#pragma once

#include <cstdint>
#include <string>

namespace habana_mp::host {

// Returns the bytes that may be taken before the system, the process's control group or its own limits refuse more.
// Memory that holds contents of files counts as free: the kernel can drop it. Returns the largest number where nothing
// limits. Reads some small files of the system, which takes some 50 microseconds.
std::uint64_t free_memory() noexcept;

// For tests: reads `/proc` and `/sys` below this directory. An empty one stands for the real files.
void set_root_of_memory_files(std::string root);

}  // namespace habana_mp::host

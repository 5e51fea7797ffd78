// The memory that this process can still allocate.
#pragma once

#include <cstdint>
#include <string>

namespace habana_mp::host {

// Returns the number of bytes that can be allocated before the system or the control group refuses more. Cached file
// contents count as free because the kernel can drop them. Returns the largest number if there is no limit. Reads small
// system files, which takes about 50 microseconds.
std::uint64_t free_memory();

// For tests: reads `/proc` and `/sys` below this directory. An empty path selects the real files.
void set_root_of_memory_files(std::string root);

}  // namespace habana_mp::host

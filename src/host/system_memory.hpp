// The memory of this process, as the system reports it: how much is free, and which of it belongs to files.
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

// True if the memory at this address, of this storage, belongs to a file that is mapped for this process alone. The
// last answer is remembered, because the weights of a model are slices of one or a few files.
bool is_of_private_file(const void* storage, const void* address);
// Forgets the answer. The file may be gone, and other memory may have its address.
void forget_files() noexcept;

}  // namespace habana_mp::host

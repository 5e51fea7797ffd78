// The memory mappings of this process.
#pragma once

namespace habana_mp::host {

// True if the memory at this address, of this storage, belongs to a file that is mapped for this process alone. The
// last answer is remembered, because the weights of a model are slices of one or a few files.
bool is_of_private_file(const void* storage, const void* address);
// Forgets the answer. The file may be gone, and other memory may have its address.
void forget_files() noexcept;

}  // namespace habana_mp::host

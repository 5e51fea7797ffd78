// Large blocks of memory for casts. The C library requests each large block from the operating system, which clears it
// page by page: that takes several times as long as the cast. Here freed blocks wait for the next cast of their size.
#pragma once

#include <cstdint>

#include "host/inside.hpp"

namespace habana_mp::tensor {

// Sets that casts of `from` bytes or more get such blocks, and that up to `most_waiting` bytes of freed blocks wait.
// Frees the blocks that wait now.
void keep_blocks(std::uint64_t from, std::uint64_t most_waiting) noexcept;

// True if this much memory should be a block of its own.
bool is_block(std::uint64_t bytes) noexcept;

// Returns a new tensor with this layout in such a block, and sets `values` to its memory. Returns null, with no
// exception set, if that is not possible.
Owned tensor_in_block(const host::Geometry& like, Kind kind, void*& values);

std::uint64_t bytes_waiting() noexcept;

// Asks the operating system for pages of 2 MB in new memory that will be written whole. It provides, and clears, a page
// at the first write: of 4 KB that takes ten times as long as a cast.
void ask_for_large_pages(void* memory, std::uint64_t bytes) noexcept;

}  // namespace habana_mp::tensor

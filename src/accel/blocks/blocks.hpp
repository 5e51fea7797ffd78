// Large blocks of memory for casts. The C library takes each from the kernel anew, which clears it page by page: that
// takes several times as long as the cast. Here they wait for the next cast of their size instead.
#pragma once

#include <cstdint>

#include "host/inside.hpp"

namespace habana_mp::accel {

// Casts from `from` bytes on get such blocks, and up to `most_waiting` bytes of them wait. What waits now is given
// back.
void keep_blocks(std::uint64_t from, std::uint64_t most_waiting) noexcept;

bool is_block(std::uint64_t bytes) noexcept;

// A new tensor that lies like this, in such a block. Null, without an exception, where there is none to be had.
Owned tensor_in_block(const host::Geometry& like, Kind kind, void*& values) noexcept;

std::uint64_t bytes_waiting() noexcept;

}  // namespace habana_mp::accel

// A persistent pool of threads for loops over memory.
#pragma once

#include <cstddef>

namespace habana_mp::kernels {

using Body = void (*)(const void* context, std::size_t begin, std::size_t end) noexcept;

// Calls `body` over [0, count), in pieces of a multiple of `grain` elements (the last one may be shorter), on at most
// `threads` threads, the calling one included. Which thread takes which piece is the same from call to call as far as
// they keep pace, for the caches' sake. Where the pool is busy with another caller's loop, cannot start threads, or the
// process is exiting, the calling thread does it all. Safe after fork; never throws.
void parallel_for(std::size_t count, std::size_t grain, unsigned threads, Body body, const void* context) noexcept;

}  // namespace habana_mp::kernels

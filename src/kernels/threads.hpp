// Threads for loops over memory: those of the library that is used beside this one. Without them, a loop runs on the
// calling thread.
#pragma once

#include <cstddef>

namespace habana_mp::kernels {

using Body = void (*)(const void* context, std::size_t begin, std::size_t end) noexcept;

// OpenMP's threads, reached through functions of its runtime. While they wait for their next loop they keep their
// processors busy. Threads of our own would have to wait for these processors.
struct Team {
  void (*run)(void (*member)(void*), void* context, unsigned threads, unsigned flags);  // GOMP_parallel
  int (*place)();                                                                       // omp_get_thread_num
  int (*size)();                                                                        // omp_get_max_threads
  // omp_pause_resource_all: ends the calling thread's team and returns 0 on success. The next loop starts a new team.
  // Null if the runtime has no such function.
  int (*pause)(int kind);
};
// Makes the team run all later loops.
//
// A forked child has none of the threads of its parent's team, and a loop would wait for them for ever. So the team of
// the thread that forks is ended before the fork, and the child starts a new team, which also runs torch's loops. If
// the team cannot be ended, the child's loops run on the calling thread.
void use_team(const Team& team) noexcept;
// Returns true if the calling thread is the only one of the process. Then no library has a team, and a child may start
// one. Null if the system does not report this.
extern bool (*is_only_thread)() noexcept;
bool has_team() noexcept;

// Calls `body` over [0, count), in pieces of `grain` elements (the last one may be shorter), on at most
// `threads` threads including the calling one. As long as the threads keep pace, each one takes the same pieces in
// every call, so that its caches stay useful. Without a team, the calling thread runs the whole loop. Safe after fork;
// never throws.
void parallel_for(std::size_t count, std::size_t grain, unsigned threads, Body body, const void* context) noexcept;

}  // namespace habana_mp::kernels

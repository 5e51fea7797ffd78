// Threads for loops over memory: another library's where it has some at hand, else a persistent pool.
#pragma once

#include <cstddef>

namespace habana_mp::kernels {

using Body = void (*)(const void* context, std::size_t begin, std::size_t end) noexcept;

// OpenMP's threads, by the functions of its runtime. While they wait for their next loop they keep their processors
// busy: beside a library that uses them threads of our own would have to wait for them.
struct Team {
  void (*run)(void (*member)(void*), void* context, unsigned threads, unsigned flags);  // GOMP_parallel
  int (*place)();                                                                       // omp_get_thread_num
  int (*size)();                                                                        // omp_get_max_threads
  // omp_pause_resource_all: ends the calling thread's team, and returns 0 where that went well. The next loop starts
  // another one. Null where there is none.
  int (*pause)(int kind);
};
// Loops on as many threads as it has, or fewer, are the team's from now on.
//
// A forked child has none of the threads of its parent's team, and a loop would wait for them for ever. So the team of
// the thread that forks is ended before, and the child starts one of its own, torch's loops included. Where that cannot
// be done the child's loops run on the pool.
void use_team(const Team& team) noexcept;
// Returns whether the calling thread is the process's only one: then no library has a team, and a child may start one.
// Null where the system does not say.
extern bool (*is_only_thread)() noexcept;
bool has_team() noexcept;
// False in a child whose thread may have inherited a team without its threads.
bool may_use_team() noexcept;

// Calls `body` over [0, count), in pieces of a multiple of `grain` elements (the last one may be shorter), on at most
// `threads` threads, the calling one included. Which thread takes which piece is the same from call to call as far as
// they keep pace, for the caches' sake. Where there is no team, and the pool is busy with another caller's loop, cannot
// start threads, or the process is exiting, the calling thread does it all. Safe after fork; never throws.
void parallel_for(std::size_t count, std::size_t grain, unsigned threads, Body body, const void* context) noexcept;

}  // namespace habana_mp::kernels

#include "kernels/threads.hpp"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>

namespace habana_mp::kernels {
namespace {

// Loops over memory gain nothing from more threads.
constexpr unsigned most_threads = 64;

// One thread's range of the loop. A thread that is done with its own range helps with the others.
struct alignas(64) Share {
  std::atomic<std::size_t> next;
  std::size_t end;
};

class Loop {
 public:
  Loop(std::size_t count, std::size_t piece, unsigned threads, Body body, const void* context)
      : count_(count), piece_(piece), threads_(threads), body_(body), context_(context) {
    const std::size_t pieces = (count + piece - 1) / piece;
    for (unsigned i = 0; i < threads; ++i) {
      shares_[i].next.store(pieces * i / threads, std::memory_order_relaxed);
      shares_[i].end = pieces * (i + 1) / threads;
    }
  }

  [[nodiscard]] unsigned threads() const { return threads_; }

  // Called by each of the threads. Pieces that one thread does not reach are done by the others.
  void work(unsigned id) {
    for (unsigned i = 0; i < threads_; ++i) {
      Share& share = shares_[(id + i) % threads_];
      while (share.next.load(std::memory_order_relaxed) < share.end) {
        const std::size_t at = share.next.fetch_add(1, std::memory_order_relaxed);
        if (at < share.end) {
          body_(context_, at * piece_, std::min(count_, (at + 1) * piece_));
        }
      }
    }
  }

 private:
  std::size_t count_;
  std::size_t piece_;
  unsigned threads_;
  Body body_;
  const void* context_;
  std::array<Share, most_threads> shares_;
};

// Set once. Cleared only in a child that cannot start a team.
Team team_in_use{};
std::atomic<bool> team_is_there{false};
// False in a child that may have inherited a team without its threads.
std::atomic<bool> may_start_team{true};

// True if the thread that forks has no team. The child, which has only this thread, reads it.
thread_local bool has_no_team = false;

// A thread that has no team yet also calls `pause`, which costs nothing. A thread that forks inside a loop keeps its
// team.
void end_team() {
  constexpr int hard = 2;  // omp_pause_hard
  if (has_team()) {
    has_no_team = team_in_use.pause != nullptr && team_in_use.pause(hard) == 0;
  } else {
    has_no_team = may_start_team.load(std::memory_order_relaxed) && is_only_thread != nullptr && is_only_thread();
  }
}

// Without its parent's team, the child's loops run on the calling thread.
void forget() {
  may_start_team.store(has_no_team, std::memory_order_relaxed);
  if (!has_no_team) team_is_there.store(false, std::memory_order_relaxed);
}

// Initialized when the module is loaded, not on first use: a fork by another thread during initialization would leave
// them half made in the child.
const int fork_handler = pthread_atfork(end_team, nullptr, forget);

}  // namespace

bool (*is_only_thread)() noexcept = nullptr;

bool has_team() noexcept { return team_is_there.load(std::memory_order_acquire); }

// False in a child whose thread may have inherited a team without its threads, or if the fork handlers are missing.
static bool may_use_team() noexcept { return may_start_team.load(std::memory_order_relaxed) && fork_handler == 0; }

void use_team(const Team& team) noexcept {
  if (has_team() || !may_use_team()) return;
  team_in_use = team;
  team_is_there.store(true, std::memory_order_release);
}

void parallel_for(std::size_t count, std::size_t grain, unsigned threads, Body body, const void* context) noexcept {
  const std::size_t pieces = (count + grain - 1) / grain;
  const std::size_t in_team = has_team() ? static_cast<std::size_t>(std::max(1, team_in_use.size())) : 1;
  const auto used = static_cast<unsigned>(std::min<std::size_t>({threads, pieces, in_team, most_threads}));
  if (used <= 1) {
    body(context, 0, count);
    return;
  }
  Loop loop(count, grain, used, body, context);
  // Use all threads of the team, like any loop of the library that owns it: a smaller team would end the other threads.
  team_in_use.run(
      [](void* shared) {
        Loop& work = *static_cast<Loop*>(shared);
        const auto place = static_cast<unsigned>(team_in_use.place());
        if (place < work.threads()) work.work(place);
      },
      &loop, 0, 0);
}

}  // namespace habana_mp::kernels

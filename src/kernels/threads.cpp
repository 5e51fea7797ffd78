#include "kernels/threads.hpp"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

namespace habana_mp::kernels {
namespace {

// Loops over memory gain nothing from more threads.
constexpr unsigned most_threads = 64;

// Waking a sleeping thread costs more than a cast within the caches, and casts come in bursts. So a thread spins this
// long before it sleeps.
constexpr std::chrono::microseconds watch_time{50};

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

const bool alone = std::thread::hardware_concurrency() == 1;

// Spins until `value` differs from `old`. False if it did not change in time.
template <class T>
bool watch(const std::atomic<T>& value, T old) {
  if (alone) {
    return value.load(std::memory_order_acquire) != old;
  }
  const auto until = std::chrono::steady_clock::now() + watch_time;
  do {
    for (int i = 0; i < 32; ++i) {
      if (value.load(std::memory_order_acquire) != old) {
        return true;
      }
      relax();
    }
  } while (std::chrono::steady_clock::now() < until);
  return false;
}

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

class Pool {
 public:
  // Returns false, with nothing done, if the pool is not available.
  bool run(Loop& loop) {
    const std::unique_lock<std::mutex> job(job_, std::try_to_lock);
    if (!job.owns_lock() || stopped_.load(std::memory_order_relaxed)) {
      return false;
    }
    const unsigned helpers = start(loop.threads() - 1);
    if (helpers == 0) {
      return false;
    }
    loop_ = &loop;
    finished_.store(0, std::memory_order_relaxed);
    seats_.store(helpers, std::memory_order_release);
    call();
    loop.work(0);

    // No thread can join any more. Wait for those that did.
    const unsigned joined = helpers - seats_.exchange(0, std::memory_order_acq_rel);
    for (unsigned now = finished_.load(std::memory_order_acquire); now != joined;
         now = finished_.load(std::memory_order_acquire)) {
      if (!watch(finished_, now)) {
        finished_.wait(now, std::memory_order_acquire);
      }
    }
    return true;
  }

  // Ends the threads. Later calls of `run` return false.
  void stop() {
    const std::lock_guard<std::mutex> job(job_);
    stopped_.store(true, std::memory_order_relaxed);
    call();
    for (std::thread& thread : threads_) {
      thread.join();
    }
    threads_.clear();
  }

 private:
  // Starts threads until there are `wanted`. Returns how many can help, which is fewer if threads cannot be started.
  unsigned start(unsigned wanted) {
    if (threads_.size() < wanted) {
      // Only the program's own threads must handle its signals.
      sigset_t all;
      sigset_t before;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
      try {
        threads_.reserve(wanted);
        while (threads_.size() < wanted) {
          threads_.emplace_back(&Pool::stay, this, static_cast<unsigned>(threads_.size()) + 1U,
                                calls_.load(std::memory_order_relaxed));
        }
      } catch (...) {  // NOLINT(bugprone-empty-catch): with fewer threads the loop only takes longer
      }
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
    return std::min(wanted, static_cast<unsigned>(threads_.size()));
  }

  void call() {
    calls_.fetch_add(1, std::memory_order_release);
    calls_.notify_all();
  }

  void stay(unsigned id, std::uint32_t seen) {
    for (;;) {
      if (!watch(calls_, seen)) {
        calls_.wait(seen, std::memory_order_acquire);
      }
      seen = calls_.load(std::memory_order_acquire);
      if (stopped_.load(std::memory_order_relaxed)) {
        return;
      }
      if (take_seat()) {
        loop_->work(id);
        finished_.fetch_add(1, std::memory_order_release);
        finished_.notify_one();
      }
    }
  }

  // A seat is available only while a loop is open, so that a thread that wakes late cannot mix up two loops.
  bool take_seat() {
    unsigned seats = seats_.load(std::memory_order_relaxed);
    while (seats != 0) {
      if (seats_.compare_exchange_weak(seats, seats - 1, std::memory_order_acq_rel, std::memory_order_relaxed)) {
        return true;
      }
    }
    return false;
  }

  std::mutex job_;
  std::vector<std::thread> threads_;
  std::atomic<bool> stopped_{false};

  Loop* loop_ = nullptr;

  alignas(64) std::atomic<std::uint32_t> calls_{0};
  alignas(64) std::atomic<unsigned> seats_{0};
  alignas(64) std::atomic<unsigned> finished_{0};
};

// Never deleted: a thread that outlives the program's end may still read it.
std::atomic<Pool*> current{nullptr};

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

// The child has none of the pool's threads, and another thread may have held the lock. So the child starts with a new
// pool. For the same reason, no lock guards the creation of the pool.
void forget() {
  current.store(nullptr, std::memory_order_relaxed);
  may_start_team.store(has_no_team, std::memory_order_relaxed);
  if (!has_no_team) team_is_there.store(false, std::memory_order_relaxed);
}

struct StopAtExit {
  ~StopAtExit() {
    if (Pool* pool = current.load(std::memory_order_acquire)) {
      pool->stop();
    }
  }
};

Pool* pool() {
  Pool* found = current.load(std::memory_order_acquire);
  if (found == nullptr) {
    auto* made = new (std::nothrow) Pool;
    if (made != nullptr && current.compare_exchange_strong(found, made, std::memory_order_acq_rel)) {
      return made;
    }
    delete made;
  }
  return found;
}

// Initialized when the module is loaded, not on first use: a fork by another thread during initialization would leave
// them half made in the child.
const int fork_handler = pthread_atfork(end_team, nullptr, forget);
const StopAtExit stop_at_exit{};

}  // namespace

bool (*is_only_thread)() noexcept = nullptr;

bool has_team() noexcept { return team_is_there.load(std::memory_order_acquire); }

bool may_use_team() noexcept { return may_start_team.load(std::memory_order_relaxed) && fork_handler == 0; }

void use_team(const Team& team) noexcept {
  if (has_team() || !may_use_team()) return;
  team_in_use = team;
  team_is_there.store(true, std::memory_order_release);
}

void parallel_for(std::size_t count, std::size_t grain, unsigned threads, Body body, const void* context) noexcept {
  const std::size_t pieces = (count + grain - 1) / grain;
  const auto used = static_cast<unsigned>(std::min<std::size_t>({threads, pieces, most_threads}));
  if (used <= 1) {
    body(context, 0, count);
    return;
  }
  Loop loop(count, grain, used, body, context);
  if (has_team() && static_cast<int>(used) <= team_in_use.size()) {
    // Use all threads of the team, like any loop of the library that owns it: a smaller team would end the other
    // threads.
    team_in_use.run(
        [](void* shared) {
          Loop& work = *static_cast<Loop*>(shared);
          const auto place = static_cast<unsigned>(team_in_use.place());
          if (place < work.threads()) work.work(place);
        },
        &loop, 0, 0);
    return;
  }
  // Without the handler a child would wait for threads that it does not have.
  Pool* const ready = fork_handler == 0 ? pool() : nullptr;
  if (ready == nullptr || !ready->run(loop)) {
    body(context, 0, count);
  }
}

}  // namespace habana_mp::kernels

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

// A loop over memory gains nothing from more.
constexpr unsigned most_threads = 64;

// Waking a sleeping thread costs more than a cast within the caches, and casts come in bursts: a thread watches for the
// next one this long before it sleeps.
constexpr std::chrono::microseconds watch_time{50};

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

const bool alone = std::thread::hardware_concurrency() == 1;

// Watches for `value` to differ from `old`; false when it did not in time.
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

// A thread's own stretch of the loop; those who are done with theirs help with the others'.
struct alignas(64) Share {
  std::atomic<std::size_t> next{0};
  std::size_t end = 0;
};

class Pool {
 public:
  // False when the pool is not to be had: then nothing was done.
  bool run(std::size_t count, std::size_t piece, unsigned threads, Body body, const void* context) {
    const std::unique_lock<std::mutex> job(job_, std::try_to_lock);
    if (!job.owns_lock() || stopped_.load(std::memory_order_relaxed)) {
      return false;
    }
    const unsigned helpers = start(threads - 1);
    if (helpers == 0) {
      return false;
    }

    shares_used_ = helpers + 1;
    const std::size_t pieces = (count + piece - 1) / piece;
    for (unsigned i = 0; i < shares_used_; ++i) {
      shares_[i].next.store(pieces * i / shares_used_, std::memory_order_relaxed);
      shares_[i].end = pieces * (i + 1) / shares_used_;
    }
    count_ = count;
    piece_ = piece;
    body_ = body;
    context_ = context;

    finished_.store(0, std::memory_order_relaxed);
    seats_.store(helpers, std::memory_order_release);
    call();
    work(0);

    // No one can join any more: what is left is to wait for those who did.
    const unsigned joined = helpers - seats_.exchange(0, std::memory_order_acq_rel);
    for (unsigned now = finished_.load(std::memory_order_acquire); now != joined;
         now = finished_.load(std::memory_order_acquire)) {
      if (!watch(finished_, now)) {
        finished_.wait(now, std::memory_order_acquire);
      }
    }
    return true;
  }

  // Ends the threads. Later loops find no pool.
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
  // How many threads there are to help, `wanted` at most.
  unsigned start(unsigned wanted) {
    if (threads_.size() < wanted) {
      // The program's signals are for the program's own threads.
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
      } catch (...) {  // NOLINT(bugprone-empty-catch): with fewer threads the loop takes longer, no more
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
        work(id);
        finished_.fetch_add(1, std::memory_order_release);
        finished_.notify_one();
      }
    }
  }

  // A seat is to be had only while a loop is open, so that a thread that wakes late can never mix up two loops.
  bool take_seat() {
    unsigned seats = seats_.load(std::memory_order_relaxed);
    while (seats != 0) {
      if (seats_.compare_exchange_weak(seats, seats - 1, std::memory_order_acq_rel, std::memory_order_relaxed)) {
        return true;
      }
    }
    return false;
  }

  void work(unsigned id) {
    for (unsigned i = 0; i < shares_used_; ++i) {
      Share& share = shares_[(id + i) % shares_used_];
      while (share.next.load(std::memory_order_relaxed) < share.end) {
        const std::size_t at = share.next.fetch_add(1, std::memory_order_relaxed);
        if (at < share.end) {
          body_(context_, at * piece_, std::min(count_, (at + 1) * piece_));
        }
      }
    }
  }

  std::mutex job_;
  std::vector<std::thread> threads_;
  std::atomic<bool> stopped_{false};

  std::size_t count_ = 0;
  std::size_t piece_ = 0;
  Body body_ = nullptr;
  const void* context_ = nullptr;
  unsigned shares_used_ = 0;
  std::array<Share, most_threads> shares_;

  alignas(64) std::atomic<std::uint32_t> calls_{0};
  alignas(64) std::atomic<unsigned> seats_{0};
  alignas(64) std::atomic<unsigned> finished_{0};
};

// Never deleted: a thread that outlives the program's end may still look at it.
std::atomic<Pool*> current{nullptr};

// After fork the child has none of the threads, and another thread may have held the lock: the child starts afresh. No
// lock guards the pool's making, for the same reason.
void forget() { current.store(nullptr, std::memory_order_relaxed); }

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

// As the module is loaded, not on first use: a fork by another thread meanwhile would leave them half made in the
// child.
const int fork_handler = pthread_atfork(nullptr, nullptr, forget);
const StopAtExit stop_at_exit{};

}  // namespace

void parallel_for(std::size_t count, std::size_t grain, unsigned threads, Body body, const void* context) noexcept {
  const std::size_t pieces = (count + grain - 1) / grain;
  const auto used = static_cast<unsigned>(std::min<std::size_t>({threads, pieces, most_threads}));
  // without the handler a child would wait for threads that it does not have
  Pool* const ready = used > 1 && fork_handler == 0 ? pool() : nullptr;
  if (ready == nullptr || !ready->run(count, grain, used, body, context)) {
    body(context, 0, count);
  }
}

}  // namespace habana_mp::kernels

// Supports greenlets: several flows of Python code that take turns in one thread. While another greenlet runs, the
// thread's state that belongs to the suspended code is saved.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <memory>

namespace habana_mp::host {

// One part of the saved state of a suspended greenlet.
struct SavedState {
  SavedState() = default;
  SavedState(const SavedState&) = delete;
  SavedState& operator=(const SavedState&) = delete;
  virtual ~SavedState() = default;
};

// A part of a thread's state of which each greenlet has its own.
struct GreenletPart {
  // Returns the state of this thread and replaces it with that of a new thread. Null if both are equal.
  std::unique_ptr<SavedState> (*take)();
  // Restores what `take` returned. `nanoseconds` is the time since then.
  void (*put_back)(SavedState& aside, std::uint64_t nanoseconds) noexcept;
};

// Registers a part. Call it while the module is loaded. Returns true.
bool add_greenlet_part(const GreenletPart& part);

// Follows greenlets from now on: each gets its own state in every thread that has a state. `settrace` and `gettrace`
// are functions of the module greenlet. False with a Python exception set on failure; greenlets are then handled as
// before.
bool follow_greenlets(PyObject* settrace, PyObject* gettrace);
// Stops following greenlets. A thread in which suspended greenlets have saved states is followed until these are
// restored.
void leave_greenlets() noexcept;

namespace detail {
extern bool greenlets_are_followed;
void follow_in_this_thread() noexcept;
}  // namespace detail

// Call this before the thread gets a state of its own.
inline void ensure_thread_follows_greenlets() noexcept {
  if (detail::greenlets_are_followed) [[unlikely]]
    detail::follow_in_this_thread();
}

}  // namespace habana_mp::host

// Greenlets: several flows of Python code take turns in one thread. The state of a thread that belongs to the running
// code is put aside while another greenlet runs.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <memory>

namespace habana_mp::host {

// One part of the state of a greenlet that waits.
struct PutAside {
  PutAside() = default;
  PutAside(const PutAside&) = delete;
  PutAside& operator=(const PutAside&) = delete;
  virtual ~PutAside() = default;
};

// A part of a thread's state that each greenlet has for itself.
struct GreenletPart {
  // Takes what this thread has, and leaves what a new thread has. Null where these are the same.
  std::unique_ptr<PutAside> (*take)();
  // Puts back what `take` gave. `nanoseconds` is how long it was aside.
  void (*put_back)(PutAside& aside, std::uint64_t nanoseconds) noexcept;
};

// To be called while the module is loaded.
bool add_greenlet_part(const GreenletPart& part);

// Tells greenlets apart from now on, in each thread that has a state of its own. `settrace` and `gettrace` are
// functions of the module greenlet. False with a Python exception set where that fails; then nothing has changed.
bool follow_greenlets(PyObject* settrace, PyObject* gettrace);
// No more. A thread in which greenlets wait with a state of their own is followed until they have it back.
void leave_greenlets() noexcept;

namespace detail {
extern bool greenlets_are_followed;
void follow_in_this_thread() noexcept;
}  // namespace detail

// To be called before this thread gets a state of its own.
inline void tell_greenlets_apart() noexcept {
  if (detail::greenlets_are_followed) [[unlikely]]
    detail::follow_in_this_thread();
}

}  // namespace habana_mp::host

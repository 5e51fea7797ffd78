// torch's own autocast, for the length of one call: it casts an operation's inputs inside of the dispatcher, where a
// cast needs no Python object. That is worth it where autograd records; it records the same casts as ours.
#pragma once

#include "host/inside.hpp"
#include "host/reader.hpp"

namespace habana_mp::host {

// Finds torch's functions for it. To be called after bind_inside.
void bind_casts_inside();

namespace detail {
extern bool autocast_was_found;
}

// Can it cast such an input, and would it? Plain dense tensors on the CPU.
inline bool can_be_cast_inside(PyObject* tensor) noexcept {
  return detail::autocast_was_found && is_plain_tensor(tensor) && keys_of(tensor) == inside.plain;
}

// Is the user's own autocast for the CPU off in this thread? Where it is on it has the last word.
bool autocast_is_off() noexcept;

// May CastsInside be used in this thread?
bool may_cast_inside() noexcept;

// On in this thread as long as it lives; then everything is as it was.
class CastsInside {
 public:
  explicit CastsInside(Kind to) noexcept;
  ~CastsInside();
  CastsInside(const CastsInside&) = delete;
  CastsInside& operator=(const CastsInside&) = delete;

 private:
  bool cache_before_;
  std::int8_t dtype_before_;
  bool dtype_changed_;
};

// Off again as long as it lives, where CastsInside is on in this thread: for a user's hook, which may run within a call
// that records more than one node.
class NoCastsInside {
 public:
  NoCastsInside() noexcept;
  ~NoCastsInside();
  NoCastsInside(const NoCastsInside&) = delete;
  NoCastsInside& operator=(const NoCastsInside&) = delete;

 private:
  bool was_on_;
};

}  // namespace habana_mp::host

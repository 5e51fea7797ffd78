// Switches on torch.autocast for one call. It casts an operation's inputs inside the dispatcher, where a cast needs no
// Python object. This is faster if autograd tracks the operation. Autograd tracks the same casts in both cases.
#pragma once

#include "host/inside.hpp"
#include "host/reader.hpp"

namespace habana_mp::host {

// Finds the functions of torch.autocast. Call it after bind_inside.
void bind_casts_inside();

namespace detail {
extern bool autocast_was_found;
}

// True if torch.autocast can and would cast this input: a plain dense tensor on the CPU.
inline bool can_be_cast_inside(PyObject* tensor) noexcept {
  return detail::autocast_was_found && is_plain_tensor(tensor) && keys_of(tensor) == inside.plain;
}

// True if the user's own autocast for the CPU is off in this thread. If it is on, it takes precedence.
bool autocast_is_off() noexcept;

// True if CastsInside may be used in this thread.
bool may_cast_inside() noexcept;

// Switches torch.autocast on in this thread during its lifetime, and then restores the former state.
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

// Switches torch.autocast off during its lifetime if CastsInside is active in this thread. For user-defined hooks,
// which may run inside a call for which autograd makes more than one node.
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

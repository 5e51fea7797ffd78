// Switches on torch.autocast for one call. It casts an operation's inputs inside the dispatcher, where a cast needs no
// Python object. This is faster on accelerators, and on the CPU if autograd tracks the operation. Autograd tracks the
// same casts in both cases.
#pragma once

#include "host/inside.hpp"
#include "host/reader.hpp"
#include "host/thread_flag.hpp"

namespace habana_mp::host {

// Finds the functions of torch.autocast. Call it after bind_inside.
void bind_casts_inside();

// torch.autocast for the CPU, or for an accelerator.
struct Autocast {
  bool is_usable = false;
  std::int8_t device_type = 0;
  ThreadFlag enabled;
};

extern Autocast autocast_on_cpu;
extern Autocast autocast_on_accelerator;

// Sets the Python function that takes a tensor which is not on the CPU. It returns the number of its device's type if
// torch.autocast for this type casts the inputs of products, -1 if it does not, or None if the device is not torch's
// accelerator.
void set_autocast_of_accelerator(PyObject* function) noexcept;

// True for a plain dense tensor on the CPU. False if that is unknown.
inline bool is_plain_on_cpu(PyObject* tensor) noexcept {
  return autocast_on_cpu.is_usable && is_plain_tensor(tensor) && keys_of(tensor) == inside.plain;
}

// Returns the torch.autocast that can and would cast this input, a plain dense tensor. Null if no autocast would.
const Autocast* autocast_for(PyObject* tensor);

// True if the user's own autocast for the CPU is off in this thread. If it is on, it takes precedence.
bool autocast_is_off() noexcept;

// True if CastsInside may be used in this thread, for the CPU or for this device.
bool may_cast_inside(const Autocast& autocast = autocast_on_cpu) noexcept;

// Switches torch.autocast on in this thread during its lifetime, and then restores the former state.
class CastsInside {
 public:
  explicit CastsInside(Kind to, const Autocast& autocast = autocast_on_cpu) noexcept;
  ~CastsInside();
  CastsInside(const CastsInside&) = delete;
  CastsInside& operator=(const CastsInside&) = delete;

 private:
  const Autocast& autocast_;
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
  const Autocast* was_on_;
};

}  // namespace habana_mp::host

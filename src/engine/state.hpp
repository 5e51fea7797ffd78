// What is going on in this thread: are casts on, and if so, is this a place where nothing may be cast?
#pragma once

#include <cstdint>
#include <optional>

#include "engine/decision.hpp"

struct _object;
using PyObject = _object;

namespace habana_mp::engine {

struct ThreadState {
  // Inside disable_casts; read only where torch's own flag cannot be (see casts_are_disabled).
  bool disabled = false;
  // Depth of functions that decide for themselves (hmp.op_wrap): inside them the lists are silent, rules 2 to 4 speak.
  std::uint32_t unlisted = 0;
  // One bit for each torch.autocast region this thread is in, the innermost lowest; set where enabled=False.
  std::uint64_t autocast_disabled = 0;
  // What the autocast region that is being entered will be.
  bool autocast_entering_disabled = false;
  // An optimizer's step has begun; whether it is still running is looked up when it matters.
  bool in_optimizer_step = false;
  // The __init__ that is constructing a module, or null.
  struct Construction* construction = nullptr;

  // Must anything be looked up before a cast is made?
  bool is_plain() const { return (autocast_disabled & 1U) == 0 && !in_optimizer_step && construction == nullptr; }
};

#if defined(__GNUC__)
// A few words that every covered call reads: worth the fixed offset.
__attribute__((tls_model("initial-exec")))
#endif
extern thread_local ThreadState thread_state;

// disable_casts is a flag of torch's own: autocast for a device type that no torch has a backend for any more. torch
// keeps it per thread, hands it to autograd's threads, and torch.compile guards on it, all of which a flag of ours
// would have to be taught.
inline constexpr const char* disabled_flag = "ipu";
inline constexpr std::int8_t disabled_flag_number = 18;  // c10::DeviceType::IPU
using ReadFlag = bool (*)(std::int8_t);                  // at::autocast::is_autocast_enabled(c10::DeviceType)
extern ReadFlag read_flag;

inline bool casts_are_disabled() {
  return read_flag != nullptr ? read_flag(disabled_flag_number) : thread_state.disabled;
}

// Finds read_flag and checks that it answers what Python sets. False with a Python exception set when torch has no such
// flag at all.
bool bind_flag() noexcept;

// Set in the processes that multiprocessing or fork made: only there a DataLoader's worker can be.
extern bool in_child_process;

// Why nothing may be cast here, if so. Called when a cast is about to be made, not before.
std::optional<Reason> why_not(ThreadState& state) noexcept;

// nn.Module.__init__ was entered in this thread; the frames above it tell who is being constructed.
void construction_begins() noexcept;

// What is to be recognised; all of it is kept from then on.
struct Places {
  PyObject* step;              // the code of torch.optim's wrapper around every step
  PyObject* codes_that_ask;    // a tuple: the code of modules that ask whether their inputs will be cast
  PyObject* worker_namespace;  // of torch.utils.data._utils.worker, whose _worker_info tells a worker
  PyObject* data_assigned;     // called with what was lowered and then assigned to a tensor's .data
};
void set_places(const Places& places) noexcept;
const Places& places() noexcept;

// Is the calling Python function one of those that ask whether their inputs will be cast, and will they be?
bool caller_will_be_cast() noexcept;

}  // namespace habana_mp::engine

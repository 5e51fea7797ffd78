// What is going on in this thread: are casts on, and if so, is this a place where nothing may be cast?
#pragma once

#include <cstdint>
#include <optional>

#include "host/thread_flag.hpp"
#include "owned.hpp"
#include "rules/decision.hpp"

namespace habana_mp::engine {

// What a region of torch.autocast does that is being entered.
enum class AutocastRegion : std::uint8_t { casts, no_casts, as_outside, as_forward, ours };

struct ThreadState {
  // A copy of torch's flag for disable_casts, for the log and for where the flag itself cannot be read.
  bool disabled = false;
  // Was it a region of torch.autocast(enabled=False) that set the flag?
  bool disabled_by_region = false;
  // The region of torch.autocast that is being entered.
  AutocastRegion entering = AutocastRegion::casts;
  std::uint64_t entering_state = 0;  // for AutocastRegion::as_forward, packed
  // Inside of functions that decide for themselves (hmp.op_wrap, composites) the lists are silent, rules 2 to 4 speak.
  bool silent = false;
  // So it is in the backward of a function written in Python: but what records there is a forward, made a second time.
  bool silent_until_recording = false;
  // The lists of the innermost region (hmp.autocast), or null: then convert's policy holds.
  const struct RuleSet* region = nullptr;
  // Steps of optimizers that have begun; whether they still run is looked up when it matters.
  std::uint32_t optimizer_steps = 0;
  // Depth of compiled code that runs: what it casts was decided when it was traced.
  std::uint32_t compiled_runs = 0;
  // The operator of torch.ops that runs: what calls it again from inside (a dispatch mode, torch's autocast) got what
  // was decided.
  const struct Target* running_operator = nullptr;
  // Under which installation torch.autocast's regions were entered.
  std::uint32_t installation = 0;
  // The module that is being constructed, or null.
  struct Construction* construction = nullptr;
};

// Set in processes that fork or multiprocessing made: only there a DataLoader's worker can be.
extern bool in_child_process;

#if defined(__GNUC__)
// A few words that every covered call reads: worth the fixed offset.
__attribute__((tls_model("initial-exec")))
#endif
extern constinit thread_local ThreadState thread_state;

// The flag of disable_casts, where it can be read below Python.
extern host::DeviceFlag flag_of_torch;

inline bool casts_are_disabled() { return flag_of_torch.is_on(thread_state.disabled); }

// Is this code that torch's dispatcher called: a decomposition, the meaning of an operation for a tensor subclass?
// There the operation was decided on above, as torch.autocast does. Where the flag is not known nothing counts as such.
extern host::KeyFlag below_autograd;
inline bool is_below_dispatcher() { return below_autograd.is_on(); }

// Finds both flags. False with a Python exception set where torch has no flag for disable_casts at all.
bool bind_flags();

// The flag, set for this thread. The log has a line for a change that `is_told`.
void set_flag(bool disabled, bool is_told = true) noexcept;

// The flag was set from Python, by disable_casts or by whoever restores what he found.
void flag_was_set(bool disabled) noexcept;

// torch.autocast's regions (rule 10): one with enabled=False disables casts like disable_casts does, and one with
// enabled=True inside of it takes that back.
// `prepare_autocast_region` finds the memory for one more region: then entering one cannot fail.
void prepare_autocast_region();
void autocast_region_is_entered() noexcept;
void autocast_region_is_left() noexcept;

// A policy is installed while this thread is in so many regions of torch.autocast, none of which is enabled.
void install_in_disabled_regions(std::uint32_t regions);
// Counts installations; it changes when everything is taken out of torch.
std::uint32_t installation_number() noexcept;
// What regions have set is taken back, and they count for nothing when they are left.
void forget_regions() noexcept;

// Are there lists that speak here, and are casts on? Outside of regions that is convert's policy.
extern bool policy_is_installed;
inline bool lists_speak_here() {
  return !casts_are_disabled() && (policy_is_installed || thread_state.region != nullptr);
}

// Set where parts of torch.distributed that handle parameters and gradients in Python are imported.
extern bool distributed_is_imported;

// Where the files lie of libraries whose own arithmetic is not lowered, a tuple of what their names begin with; null
// where none of them is imported.
extern NeverDestroyed<Owned> exact_files;

// Is there anything to be looked up before a cast is made?
inline bool may_be_a_place(const ThreadState& state) {
  return state.construction != nullptr || state.optimizer_steps != 0 || in_child_process || distributed_is_imported ||
         *exact_files;
}

// Why nothing may be cast here, if so. Called when a cast is about to be made, not before. Throws std::bad_alloc
// where there is no memory to find out.
std::optional<rules::Reason> why_not(ThreadState& state);

// Is the caller code of such a library? Asked when a list is about to lower something.
bool caller_is_exact();

// The files of these libraries, or None.
void set_exact_files(PyObject* files) noexcept;

// Are casts made here?
inline bool casts_are_made_here() { return lists_speak_here() && !why_not(thread_state).has_value(); }

// nn.Module.__init__ was entered in this thread; the frames above it tell who is being constructed. Null for the module
// whose __init__ the innermost Python code is. False with a Python exception set where there is no memory.
bool construction_begins(PyObject* module);
// Frees a mark of a construction, or null.
void forget_construction(Construction* mark) noexcept;

// What is to be recognised.
struct Recognised {
  Owned steps;             // a tuple: the code of torch.optim's wrapper around steps, and of ours around others
  Owned worker_namespace;  // of torch.utils.data._utils.worker, whose _worker_info tells a worker
  Owned made_of_lowered;   // called with words for what gets lower values, these, and what had others or None;
                           // gives the values that it is to get
  Owned autocast_entered;  // called when torch.autocast is enabled beside us
  Owned codes_of_regions;  // a tuple: code of torch that enters autocast as it was, which is nobody's wish
  Owned custom_fwd;        // the code of torch.amp.custom_fwd's wrapper
  Owned custom_fwd_asks;   // called where that asks whether autocast is on; what it is told
  Owned custom_bwd_state;  // called where custom_bwd enters autocast; the state that its forward ran in, or None
  Owned inside;            // a tuple: what the files begin with that say in Python what an operation consists of
  Owned between;           // a tuple: files of torch through which such code calls other operations
  Owned through;           // a tuple: those through which a library does
  Owned operator_found;    // called with what torch found for an operator's name, the name, and the overload's or None;
                           // a tuple of the builtins to watch as writers
  Owned module_calls;      // the code of a module's call, or None
};
void set_recognised(Recognised given) noexcept;
const Recognised& recognised() noexcept;

// Is the caller torch itself, which does in Python what another operation consists of? Asked for tensors of tracers.
bool caller_is_inside_of_an_operation();

// Is the region of torch.autocast that is being entered one of torch's own making? Then what it is to do here.
// Both throw std::bad_alloc where there is no memory to find out.
bool region_is_torchs_own();
AutocastRegion region_of_torchs_own();

// True if the forward of a module runs in this thread. Throws std::bad_alloc.
bool a_module_runs();

// Is the calling Python function the wrapper of torch.amp.custom_fwd?
bool caller_is_custom_fwd();

}  // namespace habana_mp::engine

// The state of a thread: whether casts are on, and whether this is a place where nothing may be cast.
#pragma once

#include <cstdint>
#include <optional>

#include "host/thread_flag.hpp"
#include "owned.hpp"
#include "rules/decision.hpp"

namespace habana_mp::engine {

// The part of a thread's state that decides whether casts are made, and by which rules.
struct CastState {
  bool disabled = false;
  bool by_region = false;        // disabled by a region of torch.autocast
  bool lists_suspended = false;  // the lists are suspended
  const struct RuleSet* region = nullptr;
  bool suspended_until_tracking = false;
};

struct ThreadState {
  // A copy of torch's flag for disable_casts, for the log and for when the flag itself cannot be read.
  bool disabled = false;
  // True if a region of torch.autocast(enabled=False) has set the flag.
  bool disabled_by_region = false;
  // The state in which the region of torch.autocast will run that is being entered.
  CastState entering;
  // True inside functions that decide for themselves (hmp.op_wrap, composites). The lists are suspended there, and
  // rules 2 to 4 apply.
  bool lists_suspended = false;
  // True in the backward of a function written in Python. The lists are suspended there, except for operations that
  // autograd tracks: these repeat a forward.
  bool suspended_until_tracking = false;
  // The lists of the innermost region (hmp.autocast), or null if convert's policy applies.
  const struct RuleSet* region = nullptr;
  // The number of optimizer steps that have begun. They are checked for being over only when needed.
  std::uint32_t optimizer_steps = 0;
  // The depth of running compiled code, whose casts were decided when it was traced.
  std::uint32_t compiled_runs = 0;
  // The running operator of torch.ops. A dispatch mode or torch's autocast may call it again from inside, with
  // arguments that are already decided.
  const struct Target* running_operator = nullptr;
  // The installation under which torch.autocast's regions were entered.
  std::uint32_t installation = 0;
  // True in the first run, without autograd, of a block that a reentrant checkpoint will run again. Products are
  // computed as in the second run, so that both have the same bits.
  bool runs_again = false;
  // True in the outermost call of a module, if what leaves it becomes float32 (modules.hpp); and true after a
  // handled operation has used a Parameter in lower precision in that call.
  bool in_model = false;
  bool used_lower_parameter = false;
  // The module that is being constructed, or null.
  struct Construction* construction = nullptr;
};

// Set in processes that fork or multiprocessing started. Only such a process can be a DataLoader worker.
extern bool in_child_process;

#if defined(__GNUC__)
// Every handled call reads these few words, so they have a fixed offset.
__attribute__((tls_model("initial-exec")))
#endif
extern constinit thread_local ThreadState thread_state;

// The flag of disable_casts, if it can be read without Python.
extern host::ThreadFlag flag_of_torch;

inline bool casts_are_disabled() { return flag_of_torch.is_on(thread_state.disabled); }

// True in code that torch's dispatcher called: a decomposition, or a tensor subclass's implementation of an operation.
// The operation was decided before the dispatcher, as torch.autocast does it. False if the flag is unknown.
extern host::ThreadFlag below_autograd;
inline bool is_below_dispatcher() { return below_autograd.is_on(); }

// Finds both flags. False with a Python exception set if torch has no flag for disable_casts.
bool bind_flags();

// Sets the flag for this thread. The log gets a line for a change.
void set_flag(bool disabled) noexcept;

// Called after Python has set the flag: by disable_casts, or by code that restores a former value.
void flag_was_set(bool disabled) noexcept;

// Regions of torch.autocast (rule 10). One with enabled=False disables casts as disable_casts does, and one with
// enabled=True inside it enables them again. It runs in the state `entering`. Entering it cannot fail after
// `prepare_region`.
void autocast_region_is_entered() noexcept;
void autocast_region_is_left() noexcept;

// Called when a policy is installed while this thread is in this many regions of torch.autocast, none of which is
// enabled.
void install_in_disabled_regions(std::uint32_t regions);
// Returns the number of the installation. It changes when everything is removed from torch.
std::uint32_t installation_number() noexcept;
// Takes back what regions have set. Their ends then have no effect.
void forget_regions() noexcept;

// True if convert's policy is installed, and may cast. Its lists apply outside of regions.
extern bool policy_is_installed;
bool region_casts() noexcept;  // true in a region whose lists may cast
inline bool lists_apply_here() { return !casts_are_disabled() && (policy_is_installed || region_casts()); }

// Set when the parts of torch.distributed are imported that handle parameters and gradients in Python.
extern bool distributed_is_imported;

// The files of the code whose own arithmetic is not lowered: a tuple of the beginnings of their names. Null if there is
// no such code, also none that is given by its code objects.
extern NeverDestroyed<Owned> exact_files;

// True if anything has to be looked up before a cast is made.
inline bool may_be_a_place(const ThreadState& state) {
  return state.construction != nullptr || state.optimizer_steps != 0 || in_child_process || distributed_is_imported ||
         *exact_files;
}

// Returns the reason why nothing may be cast here, or nullopt. Called only when a cast is about to be made.
std::optional<rules::Reason> reason_against_casts(ThreadState& state);

// The owner of a code object: code whose own arithmetic is not lowered, a part of torch that computes for its caller,
// or anything else.
enum class CodeOwner : std::uint8_t { other, torch, exact };
CodeOwner owner_of(PyObject* code);

// True if the caller is exact code. Called when a list is about to lower a call.
bool caller_is_exact();

// Sets the exact code: a tuple of files as above or null, and a tuple of code objects or null.
void set_exact_code(PyObject* files, PyObject* codes) noexcept;
// Makes `made`, which a compiler has made from a part of `code`, exact if `code` is one of these code objects. False
// with a Python exception set when memory runs out.
bool pass_on_exactness(PyObject* code, PyObject* made);

// The caller of the operations of this thread while a compiler traces exact code: its frames are those of the compiler.
enum class TracedCaller : std::uint8_t { unknown, exact, exact_and_asked };
// Sets the traced caller and returns the former one. It becomes `exact_and_asked` when a list is about to lower a call.
TracedCaller exchange_traced_caller(TracedCaller caller) noexcept;

// True if casts are made here.
inline bool casts_are_made_here() { return lists_apply_here() && !reason_against_casts(thread_state).has_value(); }

// Records that the construction of `module` has begun in this thread. Null stands for the module whose __init__ is the
// innermost Python code. Frames show later if the construction still runs.
void construction_begins(PyObject* module);

// The code that is recognised in frames, and the Python functions that are called.
struct Recognised {
  Owned steps;             // a tuple: code of torch.optim's wrapper of steps, and of the package's wrapper of others
  Owned worker_namespace;  // of torch.utils.data._utils.worker, whose _worker_info identifies a worker
  Owned made_of_lowered;   // called with a description of what gets lower values, these, and the float32 tensor that
                           // they replace or None; returns the values to store
  Owned autocast_entered;  // called with the device type and `enabled` when the user enters torch.autocast while casts
                           // are on
  Owned codes_of_regions;  // a tuple: code of torch that enters autocast again without a request of the user
  Owned custom_fwd;        // the code of torch.amp.custom_fwd's wrapper
  Owned custom_fwd_asks;   // called when that wrapper checks if autocast is on; returns the answer
  Owned custom_bwd_state;  // called when custom_bwd enters autocast; returns the state of its forward, or None
  Owned inside;            // a tuple: beginnings of the names of files that implement operations in Python
  Owned between;           // a tuple: the same for torch's files through which such code calls other operations
  Owned through;           // a tuple: the same for torch's files through which a library calls operations
  Owned operator_found;    // called with what torch found for an operator's name, the name, and the overload's or None;
                           // returns a tuple of the builtins to watch as writers
};
void set_recognised(Recognised given) noexcept;
const Recognised& recognised() noexcept;

// True if the caller is torch code that implements another operation in Python. Called for tensors of tracers.
bool caller_is_inside_of_an_operation();

// Returns the state in which a region of torch.autocast runs that is entered here.
CastState state_in_region(bool enabled);
// The same for a region that does not count for casts.
CastState state_in_uncounted_region() noexcept;

// True if the calling Python function is the wrapper of torch.amp.custom_fwd.
bool caller_is_custom_fwd();

}  // namespace habana_mp::engine

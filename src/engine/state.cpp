#define PY_SSIZE_T_CLEAN
#include "engine/state.hpp"

#include <Python.h>
#include <pthread.h>

#include <array>
#include <memory>
#include <new>
#include <utility>

#include "engine/region.hpp"
#include "errors.hpp"
#include "host/callers.hpp"
#include "log/log.hpp"
#include "weakrefs.hpp"

namespace habana_mp::engine {

// The record of a module that is being constructed. It holds the module weakly, because a record that outlives the
// construction must not keep a model alive.
struct Construction {
  Owned codes;   // a list of pairs: the code of each __init__ of its classes, and the function that it wraps or None
  Owned module;  // a weak reference
};

constinit thread_local ThreadState thread_state;
bool in_child_process = false;
bool distributed_is_imported = false;
NeverDestroyed<Owned> exact_files;
static NeverDestroyed<Owned> exact_codes;
static thread_local TracedCaller traced_caller = TracedCaller::unknown;
bool policy_is_installed = false;
host::ThreadFlag flag_of_torch;
host::ThreadFlag below_autograd;

namespace {

NeverDestroyed<Recognised> known_things;

// The number of this installation. A region of torch.autocast that was entered under another one is forgotten, so its
// end changes nothing.
std::uint32_t current_installation = 1;

// The owner of torch.autocast's regions. They have one owner, since torch does not show which of them ends.
constexpr char torch_autocast{};

void leave_regions_of_torch() noexcept {
  while (leave_region(&torch_autocast)) {
  }
}

void leave_regions_of_former_installations(ThreadState& state) noexcept {
  if (state.installation == current_installation) return;
  state.installation = current_installation;
  leave_regions_of_torch();
}

[[maybe_unused]] const int fork_handler = pthread_atfork(nullptr, nullptr, []() noexcept { in_child_process = true; });

bool is_one_of(PyObject* code, PyObject* codes) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(codes); ++i) {
    if (PyTuple_GET_ITEM(codes, i) == code) return true;
  }
  return false;
}

// True if an __init__ of the module is running.
bool is_running(const Construction& construction) {
  // Held, since the walk may run other code, which may drop the record.
  const Owned module = Owned::borrowed_or_null(referent_of(construction.module.get()));
  const Owned codes = Owned::borrowed(construction.codes.get());
  if (!module) return false;
  host::FrameWalk walk;
  for (; walk; walk.outwards()) {
    PyObject* pair = host::pair_of(codes.get(), walk.code());
    if (pair == nullptr) continue;
    // A decorator may wrap other methods with the same code. Reading a frame's variables would undo the changes that a
    // debugger has made to them.
    PyObject* wrapped = PyTuple_GET_ITEM(pair, 1);
    const bool is_init = wrapped == Py_None || (!walk.is_traced() && walk.encloses(wrapped));
    if (is_init && (walk.is_traced() || walk.first_parameter() == module.get())) return true;
  }
  return false;
}

// Replaces the record of the module that is being constructed; null for none.
void set_construction(ThreadState& state, Construction* record) {
  const std::unique_ptr<Construction> former(std::exchange(state.construction, record));
}

// True if the recorded module is still being constructed. If not, the record is dropped.
bool is_constructing(ThreadState& state) {
  if (state.construction == nullptr) return false;
  if (is_running(*state.construction)) return true;
  set_construction(state, nullptr);
  return false;
}

struct KnownFile {
  Owned name;  // held, so that no other string gets its address
  CodeOwner owner = CodeOwner::other;
};
// The functions of a file share its name, so the address of the string identifies the file.
NeverDestroyed<std::array<KnownFile, 256>> known_files;

CodeOwner owner_of_file(PyObject* code) {
  PyObject* name = host::file_of(code);
  KnownFile& known = (*known_files)[reinterpret_cast<std::uintptr_t>(name) / 64 % known_files->size()];
  if (known.name.get() != name) {
    CodeOwner owner = CodeOwner::other;
    if (host::is_of_file(code, known_things->through.get())) owner = CodeOwner::torch;
    if (host::is_of_file(code, exact_files->get())) owner = CodeOwner::exact;  // a user may give a part of torch
    known = {Owned::borrowed(name), owner};
  }
  return known.owner;
}

// True if the code is one of the exact code objects, or was made from one. A compiler and an exchange of code
// (habana_mp/patches/tools/exchange.py) make code with the same place.
bool is_exact_code_object(PyObject* code) {
  for (Py_ssize_t i = 0; *exact_codes && i < PyTuple_GET_SIZE(exact_codes->get()); ++i) {
    PyObject* const exact = PyTuple_GET_ITEM(exact_codes->get(), i);
    if (exact == code || host::have_same_place(code, exact)) return true;
  }
  return false;
}

// True if a step of an optimizer is running.
bool is_stepping() {
  host::FrameWalk walk;
  for (; walk; walk.outwards()) {
    if (is_one_of(walk.code(), known_things->steps.get())) return true;
  }
  return false;
}

}  // namespace

bool bind_flags() {
  if (!host::find_disabled_flag(flag_of_torch, thread_state.disabled)) return false;
  below_autograd = host::below_autograd_key();
  return true;
}

void set_flag(bool disabled) noexcept {
  ThreadState& state = thread_state;
  if (disabled != casts_are_disabled()) log::event(disabled ? "leaving casts" : "entering casts");
  state.disabled = disabled;
  if (flag_of_torch.is_known()) {
    flag_of_torch.turn(disabled);
    return;
  }
  host::set_disabled_flag(disabled);
}

void flag_was_set(bool disabled) noexcept {
  ThreadState& state = thread_state;
  if (disabled == state.disabled) return;
  log::event(disabled ? "leaving casts" : "entering casts");
  state.disabled = disabled;
  state.disabled_by_region = false;
}

void autocast_region_is_entered() noexcept {
  leave_regions_of_former_installations(thread_state);
  enter_state(&torch_autocast, thread_state.entering);
}

void autocast_region_is_left() noexcept {
  ThreadState& state = thread_state;
  leave_regions_of_former_installations(state);
  leave_region(&torch_autocast);
}

void install_in_disabled_regions(std::uint32_t regions) {
  leave_regions_of_former_installations(thread_state);
  if (has_begun_region(&torch_autocast)) return;  // the regions were tapped
  CastState wanted = current_state();
  if (!wanted.disabled) wanted.disabled = wanted.by_region = true;
  for (std::uint32_t i = 0; i < regions; ++i) enter_state(&torch_autocast, wanted);
}

std::uint32_t installation_number() noexcept { return current_installation; }

void forget_regions() noexcept {
  leave_regions_of_torch();
  CastState wanted = current_state();  // the end of a region in compiled code will not be seen
  wanted.lists_suspended = wanted.suspended_until_tracking = false;
  exchange_state(wanted);
  ++current_installation;
}

std::optional<rules::Reason> reason_against_casts(ThreadState& state) {
  if (is_constructing(state)) return rules::Reason::construction;
  if (state.optimizer_steps != 0) {
    if (is_stepping()) return rules::Reason::optimizer_step;
    state.optimizer_steps = 0;  // a step raised, and its end was not reported
  }
  if (in_child_process && host::is_worker(known_things->worker_namespace.get())) return rules::Reason::worker;
  if (distributed_is_imported && host::caller_is_distributed()) return rules::Reason::distributed;
  return std::nullopt;
}

void construction_begins(PyObject* module) {
  ThreadState& state = thread_state;
  if (is_constructing(state)) return;  // a module inside the module
  if (module == nullptr) {
    // The innermost frame is nn.Module.__init__, or a function that replaces it.
    host::FrameWalk innermost;
    module = innermost ? innermost.first_parameter() : nullptr;
  }
  if (module == nullptr) return;
  Owned reference(PyWeakref_NewRef(module, nullptr));
  Owned codes = reference ? host::init_codes(Py_TYPE(module)) : nullptr;
  if (!codes) {
    drop_error_unless_memory_error();  // the class does not support weak references
    return;
  }
  set_construction(state, new Construction{std::move(codes), std::move(reference)});
  // The record stays until the next cast checks it, perhaps until the thread ends.
  host::at_thread_end("habana_mp.construction", [] { set_construction(thread_state, nullptr); });
}

void set_recognised(Recognised given) noexcept {
  const Recognised former = std::exchange(*known_things, std::move(given));
}

const Recognised& recognised() noexcept { return *known_things; }

bool caller_is_inside_of_an_operation() {
  if (!known_things->inside) return false;
  host::FrameWalk walk;
  while (walk && host::is_of_file(walk.code(), known_things->between.get())) walk.outwards();
  return walk && host::is_of_file(walk.code(), known_things->inside.get());
}

CodeOwner owner_of(PyObject* code) {
  if (!*exact_files || !known_things->through) return CodeOwner::other;
  if (is_exact_code_object(code)) return CodeOwner::exact;
  const CodeOwner owner = owner_of_file(code);
  return owner == CodeOwner::other && host::intercepts_calls(code) ? CodeOwner::torch : owner;
}

bool caller_is_exact() {
  if (!*exact_files || !known_things->through) return false;
  if (traced_caller != TracedCaller::unknown) {
    traced_caller = TracedCaller::exact_and_asked;
    return true;
  }
  host::FrameWalk walk;
  CodeOwner owner = CodeOwner::other;
  while (walk && (owner = owner_of(walk.code())) == CodeOwner::torch) walk.outwards();
  return walk && owner == CodeOwner::exact;
}

void set_exact_code(PyObject* files, PyObject* codes) noexcept {
  *known_files = {};
  *exact_files = Owned::borrowed_or_null(files);
  *exact_codes = Owned::borrowed_or_null(codes);
}

bool pass_on_exactness(PyObject* code, PyObject* made) {
  if (!is_exact_code_object(code) || is_exact_code_object(made)) return true;
  const Owned made_alone(PyTuple_Pack(1, made));
  Owned all(made_alone ? PySequence_Concat(exact_codes->get(), made_alone.get()) : nullptr);
  if (!all) return false;
  *exact_codes = std::move(all);
  return true;
}

TracedCaller exchange_traced_caller(TracedCaller caller) noexcept { return std::exchange(traced_caller, caller); }

bool caller_is_custom_fwd() {
  const host::FrameWalk caller;
  return caller && known_things->custom_fwd && caller.code() == known_things->custom_fwd.get();
}

CastState state_in_uncounted_region() noexcept {
  leave_regions_of_former_installations(thread_state);
  CastState wanted = current_state();
  // Also in a backward, which torch.amp.custom_bwd runs as its forward ran.
  if (wanted.suspended_until_tracking) wanted.lists_suspended = wanted.suspended_until_tracking = false;
  return wanted;
}

CastState state_in_region(bool enabled) {
  leave_regions_of_former_installations(thread_state);
  CastState wanted = current_state();
  if (enabled) {
    if (wanted.by_region) wanted.disabled = wanted.by_region = false;
    return wanted;
  }
  host::FrameWalk walk;  // starts in autocast.__enter__
  if (walk) walk.outwards();
  const bool is_torchs_own =
      walk && known_things->codes_of_regions && is_one_of(walk.code(), known_things->codes_of_regions.get());
  if (!is_torchs_own) {
    if (!wanted.disabled) wanted.disabled = wanted.by_region = true;
    return wanted;
  }
  const Owned function = Owned::borrowed(known_things->custom_bwd_state.get());
  const Owned packed(PyObject_CallNoArgs(function.get()));
  const bool is_known = packed && packed.get() != Py_None;
  const std::uint64_t value = is_known ? PyLong_AsUnsignedLongLong(packed.get()) : 0;
  if (is_known && PyErr_Occurred() == nullptr) return unpack(value);
  drop_error_unless_memory_error();
  return state_in_uncounted_region();
}

}  // namespace habana_mp::engine

#define PY_SSIZE_T_CLEAN
#include "engine/state.hpp"

#include <Python.h>
#include <pthread.h>

#include <array>
#include <new>
#include <utility>

#include "engine/region.hpp"
#include "errors.hpp"
#include "host/callers.hpp"
#include "log/log.hpp"
#include "weakrefs.hpp"

namespace habana_mp::engine {

// A module that is being constructed. It is held weakly: a mark that outlives the construction must not keep a model
// alive.
struct Construction {
  PyObject* codes;   // a list: of each __init__ of its classes the code, and the function that it wraps or None
  PyObject* module;  // a weak reference
};

thread_local ThreadState thread_state;
bool in_child_process = false;
bool distributed_is_imported = false;
PyObject* exact_files = nullptr;
bool policy_is_installed = false;
host::DeviceFlag flag_of_torch;
host::KeyFlag below_autograd;

namespace {

Places known_places{};

// Regions that were entered under another installation are not this one's to leave.
std::uint32_t current_installation = 1;

// Stands for torch.autocast among those who begin regions: torch does not tell which of its regions ends.
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

[[maybe_unused]] const int fork_handler = pthread_atfork(nullptr, nullptr, [] { in_child_process = true; });

bool is_among(PyObject* code, PyObject* codes) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(codes); ++i) {
    if (PyTuple_GET_ITEM(codes, i) == code) return true;
  }
  return false;
}

bool is_running(const Construction& construction) {
  PyObject* module = referent_of(construction.module);
  if (module == nullptr) return false;
  for (host::FrameWalk walk; walk; walk.outwards()) {
    PyObject* pair = host::pair_of(construction.codes, walk.code());
    if (pair == nullptr) continue;
    // A decorator may wrap other methods with the same code. And asking a frame for its variables would undo what a
    // debugger has changed in it.
    PyObject* wrapped = PyTuple_GET_ITEM(pair, 1);
    const bool is_init = wrapped == Py_None || (!walk.is_traced() && walk.encloses(wrapped));
    if (is_init && (walk.is_traced() || walk.first_parameter() == module)) return true;
  }
  return false;
}

// The mark, or null, takes the place of the one that is there.
void set_construction(ThreadState& state, Construction* mark) {
  Construction* former = std::exchange(state.construction, mark);
  if (former == nullptr) return;
  Py_DECREF(former->codes);
  Py_DECREF(former->module);
  delete former;
}

// Is the module that the mark tells of still being constructed? Where it is not, the mark goes. Nobody else has it
// while the frames are walked: that may run finalizers, which may call operations and construct modules.
bool is_constructing(ThreadState& state) {
  Construction* mark = std::exchange(state.construction, nullptr);
  if (mark == nullptr) return false;
  const bool running = is_running(*mark);
  set_construction(state, mark);
  if (!running) set_construction(state, nullptr);
  return running;
}

// Whose code is in a file: a library's that is exact, torch's that computes for its caller, or anybody's.
enum class Whose : std::uint8_t { anybodys, torchs, exact };
struct KnownFile {
  PyObject* name = nullptr;  // owned: no other string is found under its address
  Whose whose = Whose::anybodys;
};
// The functions of a file share its name, so the string itself tells the file.
std::array<KnownFile, 256> known_files;

Whose whose_is(PyObject* code) {
  PyObject* name = host::file_of(code);
  KnownFile& known = known_files[reinterpret_cast<std::uintptr_t>(name) / 64 % known_files.size()];
  if (known.name != name) {
    Whose whose = Whose::anybodys;
    if (host::is_of_file(code, exact_files)) whose = Whose::exact;
    if (host::is_of_file(code, known_places.through)) whose = Whose::torchs;
    PyObject* former = std::exchange(known.name, Py_NewRef(name));
    known.whose = whose;
    Py_XDECREF(former);
  }
  return known.whose;
}

bool is_stepping() {
  for (host::FrameWalk walk; walk; walk.outwards()) {
    if (is_among(walk.code(), known_places.steps)) return true;
  }
  return false;
}

}  // namespace

bool bind_flags() noexcept {
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

void region_is_entered() noexcept {
  ThreadState& state = thread_state;
  leave_regions_of_former_installations(state);
  CastState wanted = current_state();
  switch (state.entering) {
    case Region::casts:
      if (wanted.by_region) wanted.disabled = wanted.by_region = false;
      break;
    case Region::no_casts:
      if (!wanted.disabled) wanted.disabled = wanted.by_region = true;
      break;
    case Region::as_outside:  // in a backward too, which torch.amp.custom_bwd wants to run as its forward
      if (wanted.silent_until_recording) wanted.silent = wanted.silent_until_recording = false;
      break;
    case Region::as_forward:
      wanted = unpack(state.entering_state);
      break;
    case Region::ours:  // the mark's dtype has told its lists
      wanted.disabled = wanted.by_region = false;
      break;
  }
  enter_state(&torch_autocast, wanted);
}

void region_is_left() noexcept {
  ThreadState& state = thread_state;
  leave_regions_of_former_installations(state);
  leave_region(&torch_autocast);
}

void install_in_disabled_regions(std::uint32_t regions) noexcept {
  ThreadState& state = thread_state;
  leave_regions_of_former_installations(state);
  if (has_begun_region(&torch_autocast)) return;  // they were watched
  for (std::uint32_t i = 0; i < regions; ++i) {
    state.entering = Region::no_casts;
    region_is_entered();
  }
}

std::uint32_t installation_number() noexcept { return current_installation; }

void forget_regions() noexcept {
  leave_regions_of_torch();
  if (thread_state.silent) end_silence(0);  // torch.compile's code would not be heard when it ends
  ++current_installation;
}

std::optional<rules::Reason> why_not(ThreadState& state) noexcept {
  if (is_constructing(state)) return rules::Reason::construction;
  if (state.optimizer_steps != 0) {
    if (is_stepping()) return rules::Reason::optimizer_step;
    state.optimizer_steps = 0;  // a step raised, and nobody said that it was over
  }
  if (in_child_process && host::is_worker(known_places.worker_namespace)) return rules::Reason::worker;
  if (distributed_is_imported && host::caller_is_distributed()) return rules::Reason::distributed;
  return std::nullopt;
}

PyObject* constructed_by_caller() noexcept {
  // The innermost frame is nn.Module.__init__, or a function that stands in for it.
  const host::FrameWalk innermost;
  return innermost ? innermost.first_parameter() : nullptr;
}

void construction_begins(PyObject* module) noexcept {
  ThreadState& state = thread_state;
  if (module == nullptr || is_constructing(state)) return;  // a module inside the module
  PyObject* reference = PyWeakref_NewRef(module, nullptr);
  PyObject* codes = reference == nullptr ? nullptr : host::init_codes(Py_TYPE(module));
  auto* construction = codes == nullptr ? nullptr : new (std::nothrow) Construction{codes, reference};
  if (construction == nullptr) {
    Py_XDECREF(reference);
    Py_XDECREF(codes);
    PyErr_Clear();
    return;
  }
  set_construction(state, construction);
}

void set_places(const Places& given) noexcept {
  Py_INCREF(given.steps);
  Py_INCREF(given.worker_namespace);
  Py_INCREF(given.made_of_lowered);
  Py_INCREF(given.autocast_entered);
  Py_INCREF(given.codes_of_regions);
  Py_INCREF(given.custom_fwd);
  Py_INCREF(given.custom_fwd_asks);
  Py_INCREF(given.custom_bwd_state);
  Py_INCREF(given.inside);
  Py_INCREF(given.between);
  Py_INCREF(given.through);
  const Places former = std::exchange(known_places, given);
  Py_XDECREF(former.steps);
  Py_XDECREF(former.worker_namespace);
  Py_XDECREF(former.made_of_lowered);
  Py_XDECREF(former.autocast_entered);
  Py_XDECREF(former.codes_of_regions);
  Py_XDECREF(former.custom_fwd);
  Py_XDECREF(former.custom_fwd_asks);
  Py_XDECREF(former.custom_bwd_state);
  Py_XDECREF(former.inside);
  Py_XDECREF(former.between);
  Py_XDECREF(former.through);
}

const Places& places() noexcept { return known_places; }

bool caller_is_inside_of_an_operation() noexcept {
  if (known_places.inside == nullptr) return false;
  host::FrameWalk walk;
  while (walk && host::is_of_file(walk.code(), known_places.between)) walk.outwards();
  return walk && host::is_of_file(walk.code(), known_places.inside);
}

bool caller_is_exact() noexcept {
  if (exact_files == nullptr || known_places.through == nullptr) return false;
  host::FrameWalk walk;
  while (walk && whose_is(walk.code()) == Whose::torchs) walk.outwards();
  return walk && whose_is(walk.code()) == Whose::exact;
}

void set_exact_files(PyObject* files) noexcept {
  PyObject* former = std::exchange(exact_files, files == Py_None ? nullptr : Py_NewRef(files));
  Py_XDECREF(former);
  for (KnownFile& known : known_files) {
    Py_XDECREF(known.name);
    known = {};
  }
}

bool caller_is_custom_fwd() noexcept {
  const host::FrameWalk caller;
  return caller && known_places.custom_fwd != nullptr && caller.code() == known_places.custom_fwd;
}

Region region_of_torchs_own() noexcept {
  PyObject* packed = PyObject_CallNoArgs(known_places.custom_bwd_state);
  const bool is_known = packed != nullptr && packed != Py_None;
  const std::uint64_t value = is_known ? PyLong_AsUnsignedLongLong(packed) : 0;
  Py_XDECREF(packed);
  if (PyErr_Occurred() != nullptr) {
    drop_error();
    return Region::as_outside;
  }
  if (is_known) thread_state.entering_state = value;
  return is_known ? Region::as_forward : Region::as_outside;
}

bool region_is_torchs_own() noexcept {
  host::FrameWalk walk;  // begins in autocast.__enter__
  if (walk) walk.outwards();
  return walk && known_places.codes_of_regions != nullptr && is_among(walk.code(), known_places.codes_of_regions);
}

}  // namespace habana_mp::engine

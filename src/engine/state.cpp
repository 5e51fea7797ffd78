#define PY_SSIZE_T_CLEAN
#include "engine/state.hpp"

#include <Python.h>
#include <pthread.h>

#include <array>
#include <new>
#include <string_view>
#include <utility>

#include "engine/region.hpp"
#include "errors.hpp"
#include "host/frames.hpp"
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

// The pair with this code, borrowed, or null.
PyObject* pair_of(PyObject* codes, PyObject* code) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(codes); ++i) {
    PyObject* pair = PyList_GET_ITEM(codes, i);
    if (PyTuple_GET_ITEM(pair, 0) == code) return pair;
  }
  return nullptr;
}

// Of every __init__ that constructs an object of this class, decorated or not, the code and what it wraps. Null with an
// exception set.
PyObject* init_codes(PyTypeObject* type) {
  PyObject* codes = PyList_New(0);
  PyObject* classes = type->tp_mro;
  for (Py_ssize_t i = 0; codes != nullptr && i < PyTuple_GET_SIZE(classes); ++i) {
    PyObject* names = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(classes, i))->tp_dict;
    PyObject* init = names == nullptr ? nullptr : PyDict_GetItemString(names, "__init__");
    while (init != nullptr && PyFunction_Check(init) && pair_of(codes, PyFunction_GET_CODE(init)) == nullptr) {
      PyObject* attributes = reinterpret_cast<PyFunctionObject*>(init)->func_dict;
      PyObject* wrapped = attributes == nullptr ? nullptr : PyDict_GetItemString(attributes, "__wrapped__");
      PyObject* pair = PyTuple_Pack(2, PyFunction_GET_CODE(init), wrapped == nullptr ? Py_None : wrapped);
      const bool is_added = pair != nullptr && PyList_Append(codes, pair) == 0;
      Py_XDECREF(pair);
      if (!is_added) {
        Py_CLEAR(codes);
        break;
      }
      init = wrapped;
    }
  }
  return codes;
}

bool is_running(const Construction& construction) {
  PyObject* module = referent_of(construction.module);
  if (module == nullptr) return false;
  for (host::FrameWalk walk; walk; walk.outwards()) {
    PyObject* pair = pair_of(construction.codes, walk.code());
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

// Was the code read from a file whose name begins with one of these?
bool is_of_file(PyObject* code, PyObject* beginnings) {
  return host::begins_with_one_of(reinterpret_cast<PyCodeObject*>(code)->co_filename, beginnings);
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
  PyObject* name = reinterpret_cast<PyCodeObject*>(code)->co_filename;
  KnownFile& known = known_files[reinterpret_cast<std::uintptr_t>(name) / 64 % known_files.size()];
  if (known.name != name) {
    Whose whose = Whose::anybodys;
    if (is_of_file(code, exact_files)) whose = Whose::exact;
    if (is_of_file(code, known_places.through)) whose = Whose::torchs;
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

bool is_worker() {
  if (known_places.worker_namespace == nullptr) return false;
  static PyObject* const name = PyUnicode_InternFromString("_worker_info");
  PyObject* info = PyDict_GetItemWithError(known_places.worker_namespace, name);
  if (info == nullptr) PyErr_Clear();
  return info != nullptr && info != Py_None;
}

// Is the innermost Python code that of torch.distributed? What it computes are parameters and gradients; a model's code
// is never there.
bool caller_is_distributed() {
  const host::FrameWalk caller;
  if (!caller) return false;
  PyObject* name = caller.module_name();
  const char* text = name != nullptr ? PyUnicode_AsUTF8(name) : nullptr;
  const bool is_it = text != nullptr && std::string_view(text).starts_with("torch.distributed.");
  Py_XDECREF(name);
  PyErr_Clear();
  return is_it;
}

}  // namespace

bool bind_flag() noexcept {
  PyObject* torch = PyImport_ImportModule("torch");
  if (torch == nullptr) return false;
  PyObject* before = PyObject_CallMethod(torch, "is_autocast_enabled", "s", disabled_flag);
  if (before == nullptr) {
    Py_DECREF(torch);
    return false;
  }
  thread_state.disabled = before == Py_True;
  host::DeviceFlag found = host::autocast_flag(disabled_flag_number);
  for (PyObject* value : {Py_True, Py_False, before}) {
    PyObject* done = PyObject_CallMethod(torch, "set_autocast_enabled", "sO", disabled_flag, value);
    if (done == nullptr) {
      Py_DECREF(before);
      Py_DECREF(torch);
      return false;
    }
    Py_DECREF(done);
    if (found.is_known() && found.is_on() != (value == Py_True)) found = {};
  }
  Py_DECREF(before);
  Py_DECREF(torch);
  flag_of_torch = found;
  return true;
}

void bind_below_autograd() noexcept {
  PyObject* c = PyImport_ImportModule("torch._C");
  PyObject* key = c == nullptr ? nullptr : PyObject_CallMethod(c, "_parse_dispatch_key", "s", "ADInplaceOrView");
  PyObject* number = key == nullptr ? nullptr : PyNumber_Long(key);
  const long value = number == nullptr ? -1 : PyLong_AsLong(number);
  Py_XDECREF(number);
  Py_XDECREF(key);
  Py_XDECREF(c);
  PyErr_Clear();
  if (value >= 0) below_autograd = host::excluded_key(static_cast<std::uint16_t>(value));
}

void set_flag(bool disabled) noexcept {
  ThreadState& state = thread_state;
  if (disabled != casts_are_disabled()) log::event(disabled ? "leaving casts" : "entering casts");
  state.disabled = disabled;
  if (flag_of_torch.is_known()) {
    flag_of_torch.turn(disabled);
    return;
  }
  PyObject* torch = PyImport_ImportModule("torch");
  PyObject* done = torch == nullptr
                       ? nullptr
                       : PyObject_CallMethod(torch, "set_autocast_enabled", "si", disabled_flag, disabled ? 1 : 0);
  Py_XDECREF(done);
  Py_XDECREF(torch);
  if (PyErr_Occurred() != nullptr) PyErr_Clear();
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
  if (in_child_process && is_worker()) return rules::Reason::worker;
  if (distributed_is_imported && caller_is_distributed()) return rules::Reason::distributed;
  return std::nullopt;
}

void construction_begins() noexcept {
  ThreadState& state = thread_state;
  if (is_constructing(state)) return;  // a module inside the module
  // The innermost frame is nn.Module.__init__, or a function that stands in for it.
  const host::FrameWalk innermost;
  PyObject* module = innermost ? innermost.first_parameter() : nullptr;
  if (module == nullptr) return;
  PyObject* reference = PyWeakref_NewRef(module, nullptr);
  PyObject* codes = reference == nullptr ? nullptr : init_codes(Py_TYPE(module));
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
  while (walk && is_of_file(walk.code(), known_places.between)) walk.outwards();
  return walk && is_of_file(walk.code(), known_places.inside);
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

#define PY_SSIZE_T_CLEAN
#include "engine/state.hpp"

#include <Python.h>
#include <dlfcn.h>
#include <frameobject.h>  // PyFrame_GetBack is declared here before 3.11
#include <pthread.h>

#include <new>
#include <utility>

namespace habana_mp::engine {

// The __init__ that was seen constructing a module. The module is held weakly: a mark that outlives the construction
// must not keep a model alive.
struct Construction {
  PyObject* code;    // of the outermost __init__
  PyObject* module;  // a weak reference
};

thread_local ThreadState thread_state;
bool in_child_process = false;
ReadFlag read_flag = nullptr;

namespace {

Places known_places{};

// Steps from frame to frame, outwards, without leaving an exception behind.
class FrameWalk {
 public:
  FrameWalk() : frame_(PyEval_GetFrame()) { Py_XINCREF(frame_); }
  ~FrameWalk() { Py_XDECREF(frame_); }
  FrameWalk(const FrameWalk&) = delete;
  FrameWalk& operator=(const FrameWalk&) = delete;

  explicit operator bool() const { return frame_ != nullptr; }
  void outwards() {
    PyFrameObject* back = PyFrame_GetBack(frame_);
    Py_DECREF(frame_);
    frame_ = back;
  }
  // Borrowed from the frame, which is running.
  PyObject* code() const {
    PyCodeObject* code = PyFrame_GetCode(frame_);
    Py_DECREF(code);
    return reinterpret_cast<PyObject*>(code);
  }
  // The value of the code's first parameter, borrowed; null where it has none.
  PyObject* first_parameter() const {
    auto* code = reinterpret_cast<PyCodeObject*>(this->code());
    if (code->co_argcount == 0) return nullptr;
#if PY_VERSION_HEX >= 0x030B0000
    PyObject* names = PyCode_GetVarnames(code);
#else
    PyObject* names = Py_NewRef(code->co_varnames);
#endif
    if (names == nullptr) {
      PyErr_Clear();
      return nullptr;
    }
    PyObject* value = nullptr;
#if PY_VERSION_HEX >= 0x030C0000
    value = PyFrame_GetVar(frame_, PyTuple_GET_ITEM(names, 0));
#else
    PyObject* locals = PyObject_GetAttrString(reinterpret_cast<PyObject*>(frame_), "f_locals");
    if (locals != nullptr) {
      value = PyObject_GetItem(locals, PyTuple_GET_ITEM(names, 0));
      Py_DECREF(locals);
    }
#endif
    Py_DECREF(names);
    if (value == nullptr) {
      PyErr_Clear();
      return nullptr;
    }
    Py_DECREF(value);  // the frame keeps it
    return value;
  }

 private:
  PyFrameObject* frame_;
};

bool is_init(PyObject* code) {
  static PyObject* const name = PyUnicode_InternFromString("__init__");
  return PyUnicode_Compare(reinterpret_cast<PyCodeObject*>(code)->co_name, name) == 0;
}

// Borrowed; null where the module is gone.
PyObject* module_of(const Construction& construction) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* module = nullptr;
  if (PyWeakref_GetRef(construction.module, &module) < 0) PyErr_Clear();
  Py_XDECREF(module);
  return module;
#else
  PyObject* module = PyWeakref_GetObject(construction.module);
  return module == Py_None ? nullptr : module;
#endif
}

bool is_running(const Construction& construction) {
  PyObject* module = module_of(construction);
  if (module == nullptr) return false;
  for (FrameWalk walk; walk; walk.outwards()) {
    if (walk.code() == construction.code && walk.first_parameter() == module) return true;
  }
  return false;
}

void forget_construction(ThreadState& state) {
  Construction* construction = state.construction;
  state.construction = nullptr;
  Py_DECREF(construction->code);
  Py_DECREF(construction->module);
  delete construction;
}

bool is_stepping() {
  for (FrameWalk walk; walk; walk.outwards()) {
    if (walk.code() == known_places.step) return true;
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

[[maybe_unused]] const int fork_handler = pthread_atfork(nullptr, nullptr, [] { in_child_process = true; });

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
  ReadFlag found = nullptr;
  if (void* library = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY)) {
    found = reinterpret_cast<ReadFlag>(dlsym(library, "_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE"));
  }
  for (PyObject* value : {Py_True, Py_False, before}) {
    PyObject* done = PyObject_CallMethod(torch, "set_autocast_enabled", "sO", disabled_flag, value);
    if (done == nullptr) {
      Py_DECREF(before);
      Py_DECREF(torch);
      return false;
    }
    Py_DECREF(done);
    if (found != nullptr && found(disabled_flag_number) != (value == Py_True)) found = nullptr;
  }
  Py_DECREF(before);
  Py_DECREF(torch);
  read_flag = found;
  return true;
}

std::optional<Reason> why_not(ThreadState& state) noexcept {
  if ((state.autocast_disabled & 1U) != 0) return Reason::autocast_disabled;
  if (state.construction != nullptr) {
    if (is_running(*state.construction)) return Reason::construction;
    forget_construction(state);
  }
  if (state.in_optimizer_step) {
    if (is_stepping()) return Reason::optimizer_step;
    state.in_optimizer_step = false;  // the step raised, and nobody said that it was over
  }
  if (in_child_process && is_worker()) return Reason::worker;
  return std::nullopt;
}

void construction_begins() noexcept {
  ThreadState& state = thread_state;
  if (state.construction != nullptr) {
    if (is_running(*state.construction)) return;  // a module inside the module
    forget_construction(state);
  }
  // The innermost __init__ is nn.Module's own; the outermost one with the same first argument is the model's.
  // Decorators may stand between them, so a frame that is no __init__ ends nothing.
  constexpr int deepest = 32;
  PyObject* module = nullptr;
  PyObject* outermost = nullptr;
  int depth = 0;
  for (FrameWalk walk; walk && depth < deepest; walk.outwards(), ++depth) {
    PyObject* code = walk.code();
    if (!is_init(code)) continue;
    PyObject* first = walk.first_parameter();
    if (module == nullptr) module = first;
    if (first != nullptr && first == module) outermost = code;
  }
  if (outermost == nullptr) return;
  PyObject* reference = PyWeakref_NewRef(module, nullptr);
  if (reference == nullptr) {
    PyErr_Clear();
    return;
  }
  state.construction = new (std::nothrow) Construction{Py_NewRef(outermost), reference};
}

void set_places(const Places& given) noexcept {
  Py_INCREF(given.step);
  Py_INCREF(given.codes_that_ask);
  Py_INCREF(given.worker_namespace);
  Py_INCREF(given.data_assigned);
  const Places former = std::exchange(known_places, given);
  Py_XDECREF(former.step);
  Py_XDECREF(former.codes_that_ask);
  Py_XDECREF(former.worker_namespace);
  Py_XDECREF(former.data_assigned);
}

const Places& places() noexcept { return known_places; }

bool caller_will_be_cast() noexcept {
  const FrameWalk caller;
  if (!caller || known_places.codes_that_ask == nullptr) return false;
  PyObject* code = caller.code();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(known_places.codes_that_ask); ++i) {
    if (PyTuple_GET_ITEM(known_places.codes_that_ask, i) == code) {
      return !casts_are_disabled() && !why_not(thread_state).has_value();
    }
  }
  return false;
}

}  // namespace habana_mp::engine

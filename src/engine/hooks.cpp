#include "engine/hooks.hpp"

#include "errors.hpp"
#include "host/frames.hpp"

namespace habana_mp::engine {

namespace {

bool goes_through_hooks(PyObject* innermost, PyObject* caller, PyObject* called) {
  PyObject* inner = nullptr;  // the code that the frame called
  host::FrameWalk frame(reinterpret_cast<PyFrameObject*>(innermost));
  for (; frame; frame.outwards()) {
    PyObject* const code = frame.code();
    if (code == caller) {
      const Owned function = frame.variable(called);
      clear_error();
      const bool is_inside =
          function && PyFunction_Check(function.get()) && PyFunction_GET_CODE(function.get()) == inner;
      if (!is_inside) return true;
    }
    inner = code;
  }
  return frame.failed();  // the outer frames are then unknown
}

}  // namespace

// No other thread runs between the check and the change: garbage collection, whose finalizers could let one run, is
// off.
int set_hook(PyObject* dictionary, PyObject* key, PyObject* hook, PyObject* caller, PyObject* called) noexcept {
  // `sys` is not imported, since an import fails at the interpreter's end. If `sys` is empty, no other thread runs.
  PyObject* const current_frames = PySys_GetObject("_current_frames");  // borrowed
  const Owned frames(current_frames == nullptr ? PyDict_New() : PyObject_CallNoArgs(current_frames));
  if (!frames) return -1;
  const bool collects = PyGC_Disable() != 0;
  const unsigned long mine = PyThread_get_thread_ident();
  bool is_busy = false;
  PyObject* thread = nullptr;
  PyObject* frame = nullptr;
  for (Py_ssize_t place = 0; !is_busy && PyDict_Next(frames.get(), &place, &thread, &frame) != 0;) {
    is_busy = PyLong_AsUnsignedLong(thread) != mine && goes_through_hooks(frame, caller, called);
  }
  int done = is_busy ? 0 : 1;
  if (!is_busy) {
    int failed = hook == nullptr ? PyObject_DelItem(dictionary, key) : PyObject_SetItem(dictionary, key, hook);
    if (failed != 0 && hook == nullptr && PyErr_ExceptionMatches(PyExc_KeyError) != 0) {
      clear_error();  // other code has emptied it
      failed = 0;
    }
    if (failed != 0) done = -1;
  }
  if (collects) PyGC_Enable();
  return done;
}

}  // namespace habana_mp::engine

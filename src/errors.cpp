#define PY_SSIZE_T_CLEAN
#include "errors.hpp"

#include <string_view>

namespace habana_mp {

namespace {

int raise_pending(void* exception) {
  const Owned held(static_cast<PyObject*>(exception));
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(held.get())), held.get());
  return -1;
}

bool is_main_thread() {
  const Owned threading(PyImport_ImportModule("threading"));
  const Owned main(threading ? PyObject_CallMethod(threading.get(), "main_thread", nullptr) : nullptr);
  const Owned number(main ? PyObject_GetAttrString(main.get(), "ident") : nullptr);
  const unsigned long ident = number ? PyLong_AsUnsignedLong(number.get()) : 0;
  PyErr_Clear();  // drops an error of these calls; the one to raise is held
  return ident == PyThread_get_thread_ident();
}

// Returns the exception with its traceback, or null if none is set.
Owned taken_exception() {
#if PY_VERSION_HEX >= 0x030C0000
  return Owned(PyErr_GetRaisedException());
#else
  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback != nullptr) PyException_SetTraceback(value, traceback);
  const Owned held_type(type);
  const Owned held_traceback(traceback);
  return Owned(value);
#endif
}

}  // namespace

bool is_interrupt() noexcept {
  if (PyErr_ExceptionMatches(PyExc_Exception) == 0 || PyErr_ExceptionMatches(PyExc_TimeoutError) != 0) return true;
  PyObject* const type = PyErr_Occurred();
  if (PyType_HasFeature(reinterpret_cast<PyTypeObject*>(type), Py_TPFLAGS_HEAPTYPE) == 0) return false;
  const Owned held_type = Owned::borrowed(type);
  const HeldError held;
  const Owned module(PyObject_GetAttrString(type, "__module__"));
  const char* text = module && PyUnicode_Check(module.get()) ? PyUnicode_AsUTF8(module.get()) : nullptr;
  const std::string_view name(text == nullptr ? "" : text);
  PyErr_Clear();
  return name != "torch" && !name.starts_with("torch.") && !name.starts_with("habana_mp.");
}

void raise_later() noexcept {
  Owned exception = taken_exception();
  if (!exception) return;
  // Pending calls run in the main thread. In another thread an exception can be set only by its class.
  PyObject* const object = exception.get();
  if (is_main_thread() && Py_AddPendingCall(&raise_pending, object) == 0) {
    static_cast<void>(exception.release());  // the pending call owns it now
    return;
  }
  PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), reinterpret_cast<PyObject*>(Py_TYPE(object)));
}

}  // namespace habana_mp

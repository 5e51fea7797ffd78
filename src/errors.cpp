#define PY_SSIZE_T_CLEAN
#include "errors.hpp"

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

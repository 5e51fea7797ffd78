#define PY_SSIZE_T_CLEAN
#include "host/thread_end.hpp"

#include <Python.h>

#include "errors.hpp"
#include "from_c.hpp"

namespace habana_mp::host {

namespace {

// The address tells threads apart.
thread_local char here = 0;

// Python clears the states of other threads after a fork and at exit. Their thread_local objects are then out of reach.
void end_thread(PyObject* capsule) {
  if (PyCapsule_GetContext(capsule) != &here) return;
  reinterpret_cast<void (*)()>(PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule)))();
}

}  // namespace

void at_thread_end(const char* name, void (*work)()) {
  PyObject* const dictionary = PyThreadState_GetDict();  // cleared at the thread's end
  if (dictionary == nullptr) return;
  const HeldError held;
  if (PyDict_GetItemString(dictionary, name) == nullptr) {
    const Owned capsule(PyCapsule_New(reinterpret_cast<void*>(work), name, from_c<end_thread>.pointer()));
    if (capsule && PyCapsule_SetContext(capsule.get(), &here) == 0) {
      PyDict_SetItemString(dictionary, name, capsule.get());
    }
  }
  clear_error();  // no other code runs here
}

}  // namespace habana_mp::host

#define PY_SSIZE_T_CLEAN
#include "host/thread_end.hpp"

#include <Python.h>

#include <memory>
#include <thread>

#include "errors.hpp"
#include "from_c.hpp"

namespace habana_mp::host {

namespace {

struct Ending {
  void (*work)();
  std::thread::id thread = std::this_thread::get_id();
};

// Python clears the states of other threads after a fork and at exit. Their thread_local objects are then out of reach.
void end_thread(PyObject* capsule) {
  const std::unique_ptr<Ending> ending(static_cast<Ending*>(PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule))));
  if (ending && ending->thread == std::this_thread::get_id()) ending->work();
}

}  // namespace

void at_thread_end(const char* name, void (*work)()) {
  PyObject* const dictionary = PyThreadState_GetDict();  // cleared at the thread's end
  if (dictionary == nullptr) return;
  const HeldError held;
  if (PyDict_GetItemString(dictionary, name) == nullptr) {
    auto ending = std::make_unique<Ending>(Ending{work});
    const Owned capsule(PyCapsule_New(ending.get(), name, from_c<end_thread>.pointer()));
    if (capsule) {
      static_cast<void>(ending.release());  // owned by the capsule
      PyDict_SetItemString(dictionary, name, capsule.get());
    }
  }
  clear_error();  // no other code runs here
}

}  // namespace habana_mp::host

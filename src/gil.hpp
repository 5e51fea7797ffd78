// Work without the GIL.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace habana_mp {

// Not pybind11's gil_scoped_release: before Python 3.14 a daemon thread that asks for the GIL while the interpreter
// ends is ended by an unwinding, and in a destructor that would end the whole program, with an abort.
template <class Work>
void without_gil(const Work& work) {
  PyThreadState* const state = PyEval_SaveThread();
  work();
  try {
    PyEval_RestoreThread(state);
  } catch (...) {
    for (;;) {
      pause();  // as Python 3.14 does: no object may be released any more, and the process is about to end
    }
  }
}

}  // namespace habana_mp

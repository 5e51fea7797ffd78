// Work without the GIL.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace habana_mp {

// Gives up the GIL, and takes it again at the end of its scope, also where an exception ends the scope.
//
// Not pybind11's gil_scoped_release: before Python 3.14 a daemon thread that asks for the GIL while the interpreter
// ends is ended by an unwinding, and in a destructor that would end the whole program, with an abort.
class WithoutGil {
 public:
  WithoutGil() noexcept : state_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) {
        pause();  // as Python 3.14 does: no object may be released any more, and the process is about to end
      }
    }
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

template <class Work>
void without_gil(const Work& work) {
  const WithoutGil released;
  work();
}

}  // namespace habana_mp

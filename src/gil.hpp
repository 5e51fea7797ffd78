// Runs work without the GIL.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace habana_mp {

// Releases the GIL, and takes it again at the end of its scope, also if an exception ends the scope.
//
// Replaces pybind11's gil_scoped_release: before Python 3.14 a daemon thread that requests the GIL while the
// interpreter ends is ended by unwinding, and in a destructor that would abort the whole program.
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

// Keeps the GIL for work that ends before another thread could use it.
template <class Work>
void without_gil_if(bool takes_long, const Work& work) {
  if (takes_long) {
    without_gil(work);
  } else {
    work();
  }
}

}  // namespace habana_mp

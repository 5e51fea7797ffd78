// Repairs state in a forked child: the other threads of its parent are gone, in the middle of their work.
//
// State that the GIL guards is repaired by functions that are listed here, each in the file that owns the state. They
// run in the only thread of the child, under the GIL, before os.fork returns; they may run Python code. State that
// threads change without the GIL has handlers of pthread_atfork. tensor/blocks takes its lock before a fork, so that
// the child finds it free. kernels/threads.cpp starts with a new pool in the child.
#pragma once

#include <vector>

namespace habana_mp::forks {

using Function = void (*)();

// Never destroyed: a process may fork while it exits.
inline std::vector<Function>& in_child() {
  static auto* const functions = new std::vector<Function>;
  return *functions;
}

// Call it while the module is loaded: `const bool is_mended = forks::mend_in_child(&function);`
inline bool mend_in_child(Function function) {
  in_child().push_back(function);
  return true;
}

inline void mend() {
  for (const Function function : in_child()) function();
}

}  // namespace habana_mp::forks

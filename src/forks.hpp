// What a forked child has to mend: its parent's other threads are gone, in the middle of what they did.
//
// What the GIL guards is mended by functions that are listed here, each in the file that owns the state. They run in
// the child under the GIL, before os.fork returns, in the only thread; they may run Python code. State that threads
// change without the GIL (kernels/threads.cpp, accel/blocks, host/held_memory.cpp) has handlers of pthread_atfork:
// locks are taken before a fork, so that the child finds them free.
#pragma once

#include <vector>

namespace habana_mp::forks {

using Function = void (*)();

// Never destroyed: a process may fork while it exits.
inline std::vector<Function>& in_child() {
  static auto* const functions = new std::vector<Function>;
  return *functions;
}

// To be called as the module is loaded: `const bool is_mended = forks::mend_in_child(&function);`
inline bool mend_in_child(Function function) {
  in_child().push_back(function);
  return true;
}

inline void mend() {
  for (const Function function : in_child()) function();
}

}  // namespace habana_mp::forks

// Runs work at the end of a thread, while Python objects can still be released.
#pragma once

namespace habana_mp::host {

// Calls `work` in this thread, with the GIL, when Python clears the thread's state. Destructors of thread_local objects
// run later, without the GIL. Only the first call with a name registers its work.
void at_thread_end(const char* name, void (*work)());

}  // namespace habana_mp::host

// Work at the end of a thread, done while Python's objects may still be released.
#pragma once

namespace habana_mp::host {

// Calls `work` in this thread, with the GIL, when Python forgets the thread. Destructors of thread_local objects run
// later, without the GIL. One registration serves all calls with the same name. Without memory for it `work` is not
// called.
void at_thread_end(const char* name, void (*work)()) noexcept;

}  // namespace habana_mp::host

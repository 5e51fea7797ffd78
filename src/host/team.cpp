#include "host/team.hpp"

#include <dirent.h>
#include <dlfcn.h>

#include <array>
#include <string_view>

#include "host/ledger.hpp"
#include "kernels/threads.hpp"

// ThreadSanitizer cannot see the synchronization in the OpenMP runtime.
#if defined(__SANITIZE_THREAD__)
#define HABANA_MP_UNDER_THREAD_SANITIZER
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HABANA_MP_UNDER_THREAD_SANITIZER
#endif
#endif

namespace habana_mp::host {

namespace {

Assumption openmp_threads{
    "openmp.threads",
    "torch's loops run on threads of OpenMP's runtime, by GOMP_parallel, which our kernels can ask too",
    "its three functions are one library's; a loop of one thread calls what it was given once, with what it was given",
    "our kernels run on the calling thread"};

Assumption openmp_pause{
    "openmp.pause",
    "omp_pause_resource_all of GCC's OpenMP ends the calling thread's team, so that a forked child can start another",
    "it is of the library that runs torch's loops, which is GCC's; it gives 0, and a loop runs after it",
    "in a forked child our kernels run on the calling thread"};

void* find_in_torch(const char* name) {
  void* library = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
  return library == nullptr ? nullptr : dlsym(library, name);
}

bool are_of_one_library(const std::array<void*, 3>& functions) {
  const char* path = nullptr;
  for (void* function : functions) {
    Dl_info found;
    if (function == nullptr || dladdr(function, &found) == 0) return false;
    if (path != nullptr && std::string_view(path) != found.dli_fname) return false;
    path = found.dli_fname;
  }
  return true;
}

struct Seen {
  const kernels::Team* team;
  int calls = 0;
  int place = -1;
};

// True if a loop of one thread calls its function once. Starts no thread.
bool calls_once(const kernels::Team& team) {
  Seen seen{&team};
  team.run(
      [](void* context) {
        auto* given = static_cast<Seen*>(context);
        ++given->calls;
        given->place = given->team->place();
      },
      &seen, 1, 0);
  return seen.calls == 1 && seen.place == 0 && team.size() >= 1;
}

// True for GCC's OpenMP runtime. Other runtimes restart in a child by themselves, and may forget the requested number
// of threads.
bool is_of_gcc(void* function) {
  Dl_info found;
  return dladdr(function, &found) != 0 && std::string_view(found.dli_fname).find("libgomp") != std::string_view::npos;
}

bool ends_and_starts(const kernels::Team& team) {
  constexpr int hard = 2;  // omp_pause_hard
  return team.pause != nullptr && is_of_gcc(reinterpret_cast<void*>(team.pause)) &&
         is_of_gcc(reinterpret_cast<void*>(team.run)) && team.pause(hard) == 0 && calls_once(team);
}

// Set when the module is loaded: a process may fork before torch is bound.
[[maybe_unused]] const bool is_asked = [] {
  kernels::is_only_thread = []() noexcept {
    DIR* const tasks = opendir("/proc/self/task");
    if (tasks == nullptr) return false;
    int count = 0;
    for (const dirent* one = readdir(tasks); one != nullptr; one = readdir(tasks)) {
      if (one->d_name[0] != '.') ++count;
    }
    closedir(tasks);
    return count == 1;
  };
  return true;
}();

}  // namespace

void bind_team() {
#if !defined(HABANA_MP_UNDER_THREAD_SANITIZER)
  const std::array<void*, 3> functions{find_in_torch("GOMP_parallel"), find_in_torch("omp_get_thread_num"),
                                       find_in_torch("omp_get_max_threads")};
  kernels::Team team{};
  team.run = reinterpret_cast<decltype(team.run)>(functions[0]);
  team.place = reinterpret_cast<decltype(team.place)>(functions[1]);
  team.size = reinterpret_cast<decltype(team.size)>(functions[2]);
  if (!openmp_threads.holds_by([&] { return are_of_one_library(functions) && calls_once(team); })) return;
  if (!kernels::may_use_team()) return;  // to end a team whose threads are missing would wait for them
  team.pause = reinterpret_cast<decltype(team.pause)>(find_in_torch("omp_pause_resource_all"));
  if (!openmp_pause.holds_by([&] { return ends_and_starts(team); })) team.pause = nullptr;
  kernels::use_team(team);
#endif
}

}  // namespace habana_mp::host

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
    "its three functions are one library's", "our kernels run on the calling thread"};

Assumption openmp_pause{
    "openmp.pause",
    "omp_pause_resource_all of GCC's OpenMP ends the calling thread's team, so that a forked child can start another",
    "it is of the library that runs torch's loops, which is GCC's; at each fork, that it gives 0",
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

// True for GCC's OpenMP runtime. Other runtimes restart in a child by themselves, and may forget the requested number
// of threads.
bool is_of_gcc(void* function) {
  Dl_info found;
  return dladdr(function, &found) != 0 && std::string_view(found.dli_fname).find("libgomp") != std::string_view::npos;
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
  if (!openmp_threads.holds_by([&] { return are_of_one_library(functions); })) return;
  void* const pause = find_in_torch("omp_pause_resource_all");
  if (openmp_pause.holds_by([&] { return is_of_gcc(functions[0]) && is_of_gcc(pause); })) {
    team.pause = reinterpret_cast<decltype(team.pause)>(pause);
  }
  kernels::use_team(team);
#endif
}

}  // namespace habana_mp::host

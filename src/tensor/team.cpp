#include "tensor/team.hpp"

#include <dlfcn.h>

#include "kernels/threads.hpp"

namespace habana_mp::tensor {

namespace {

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
}

}  // namespace

void bind_team() noexcept {
#if !defined(__SANITIZE_THREAD__)  // which cannot see how that runtime keeps its threads in step
  // What a library was linked against is searched along with it.
  void* cpu = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
  if (cpu == nullptr) return;
  kernels::Team team{};
  find(cpu, "GOMP_parallel", team.run);
  find(cpu, "omp_get_thread_num", team.place);
  find(cpu, "omp_get_max_threads", team.size);
  if (team.run != nullptr && team.place != nullptr && team.size != nullptr) kernels::use_team(team);
#endif
}

}  // namespace habana_mp::tensor

#include "tensor/team.hpp"

#include "kernels/threads.hpp"
#include "tensor/torch_library.hpp"

// It cannot see how OpenMP's runtime keeps its threads in step.
#if defined(__SANITIZE_THREAD__)
#define HABANA_MP_UNDER_THREAD_SANITIZER
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HABANA_MP_UNDER_THREAD_SANITIZER
#endif
#endif

namespace habana_mp::tensor {

void bind_team() noexcept {
#if !defined(HABANA_MP_UNDER_THREAD_SANITIZER)
  const TorchLibrary torch("libtorch_cpu.so");
  kernels::Team team{};
  torch.find("GOMP_parallel", team.run);
  torch.find("omp_get_thread_num", team.place);
  torch.find("omp_get_max_threads", team.size);
  if (team.run != nullptr && team.place != nullptr && team.size != nullptr) kernels::use_team(team);
#endif
}

}  // namespace habana_mp::tensor

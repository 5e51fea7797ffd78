// Runs on every processor. If the processor has fused multiply-add, as every aarch64 does, the compiler uses it.
#include "kernels/step_loops.hpp"

namespace habana_mp::kernels {

const StepKernels scalar_steps = {adam, sgd, adagrad, lamb_averages, lamb_weight, squares};

}  // namespace habana_mp::kernels

#include "kernels/step_loops.hpp"

namespace habana_mp::kernels {

const StepKernels avx512_steps = {adam, sgd, adagrad, lamb_averages, lamb_weight, squares};

}  // namespace habana_mp::kernels

#include "kernels/step_loops.hpp"

namespace habana_mp::kernels {

const StepKernels avx2_steps = {adam, sgd};

}  // namespace habana_mp::kernels

// Torch's threads for our kernels.
#pragma once

namespace habana_mp::tensor {

// Finds OpenMP's runtime in what torch has loaded. Where its torch was built without, the kernels keep their own.
void bind_team() noexcept;

}  // namespace habana_mp::tensor

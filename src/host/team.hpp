// Torch's threads for our kernels.
#pragma once

namespace habana_mp::host {

// Finds OpenMP's runtime in what torch has loaded. Where torch was built without, the kernels keep to their own
// threads.
void bind_team();

}  // namespace habana_mp::host

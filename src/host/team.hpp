// Runs the kernels on torch's threads.
#pragma once

namespace habana_mp::host {

// Finds the OpenMP runtime that torch has loaded. If torch was built without OpenMP, the kernels use their own threads.
void bind_team();

}  // namespace habana_mp::host

// Runs the kernels on torch's threads.
#pragma once

namespace habana_mp::host {

// Finds the OpenMP runtime that torch has loaded. If torch was built without OpenMP, the kernels run on the calling
// thread.
void bind_team();

}  // namespace habana_mp::host

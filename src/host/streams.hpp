// The current streams of torch's accelerator.
#pragma once

#include <cstdint>
#include <optional>

namespace habana_mp::host {

// Finds the function. Call it after bind_torch.
void bind_streams();

// Returns the number of the stream on which this thread's next operation on a device of torch's accelerator runs.
// Nullopt if it cannot be told.
std::optional<std::int64_t> current_stream(int device) noexcept;

}  // namespace habana_mp::host

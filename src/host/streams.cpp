#include "host/streams.hpp"

#include "host/ledger.hpp"
#include "host/symbols.hpp"

namespace habana_mp::host {

namespace {

Assumption current_streams{
    "torch.current-stream",
    "at::accelerator::getCurrentStream is called in torch's library, and returns a c10::Stream: a device and a number",
    "what it takes and returns, by torch's header in releases that are not known; torch.streams-of-accelerators checks "
    "its results",
    "casts of weights on accelerators are not cached"};

// c10::Stream, a class that C++ returns in two registers.
struct Stream {
  std::int8_t device_type;
  std::int8_t device;
  std::int64_t number;
};

Stream (*current)(std::int8_t device) = nullptr;

}  // namespace

void bind_streams() {
  if (!current_streams.is_broken()) {
    find({"libtorch_cpu.so", "_ZN2at11accelerator16getCurrentStreamEa", "ATen/DeviceAccelerator.h",
          "TORCH_API c10::Stream getCurrentStream(c10::DeviceIndex device_index);"},
         current);
  }
  current_streams.settle(current != nullptr);
}

std::optional<std::int64_t> current_stream(int device) noexcept {
  if (current == nullptr) return std::nullopt;
  try {
    return current(static_cast<std::int8_t>(device)).number;
  } catch (...) {
    return std::nullopt;
  }
}

}  // namespace habana_mp::host

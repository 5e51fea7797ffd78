// The memory and the streams of the pretended accelerator.
//
// The address of a tensor cannot be read or written: it is the first half of a reservation. The kernels use the second
// half, at a fixed distance. All work runs at once. The order that a real device would not guarantee is checked with
// vector clocks: each stream has a clock, an event carries a copy of it, and to wait for an event merges it.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

namespace pretended {

constexpr int kDevices = 2;
constexpr int kStreams = 32;  // of each device: the default stream, and those that are given out in turn
constexpr auto kType = c10::DeviceType::PrivateUse1;

// A stream's number is unique over both devices.
using Clock = std::array<uint64_t, size_t{kDevices} * kStreams>;

inline c10::Device as_device(int index) { return {kType, static_cast<c10::DeviceIndex>(index)}; }
inline int device_of(int stream) { return stream / kStreams; }
inline int number_of(c10::Stream stream) { return stream.device_index() * kStreams + static_cast<int>(stream.id()); }
inline c10::Stream as_stream(int number) {
  return c10::Stream(c10::Stream::UNSAFE, as_device(device_of(number)), number % kStreams);
}

int current_device();
void set_current_device(int device);
int current_stream(int device);
void set_current_stream(int stream);
int take_stream(int device);

struct Access {
  int stream = -1;
  uint64_t time = 0;
  uint64_t life = 0;  // which tensor had the block then
};

struct Block {
  char* address;
  size_t size;
  int device;
  int stream;  // the stream that it was allocated on
  uint64_t life = 0;
  Access write{};
  c10::SmallVector<Access, 2> reads{};
  c10::SmallVector<int, 2> recorded{};       // by record_stream
  c10::SmallVector<Access, 2> unfinished{};  // work of the recorded streams when the block was freed
};

struct Event {
  Clock clock{};
  int stream = 0;
  bool is_timed = false;
  double milliseconds = 0;
};

// Checks and remembers that a kernel of the stream uses the memory.
void use(Block& block, int stream, bool writes);

void record(Event& event, int stream);
void wait(int stream, const Event& event);
void wait_for_stream(int stream, int other);

// The host waits. This fails during a capture.
void synchronize_event(const Event& event);
void synchronize_stream(int stream);
void synchronize_device(int device);
int64_t synchronizations();

// Runs the function when the host first waits for what the stream has been given so far.
void when_host_waits(int stream, std::function<void()> function);

void set_capturing(bool is_capturing);
bool is_capturing();

// Returns the block of the storage; null if it has no memory.
Block* block_of(const c10::Storage& storage);
// Returns the address at which kernels read and write.
void* alias_of(const void* address);
bool is_device_address(const void* address);

c10::DeviceAllocator& allocator();
void set_memory_limit(int device, size_t bytes);
void resize_storage(const c10::Storage& storage, size_t bytes);

}  // namespace pretended

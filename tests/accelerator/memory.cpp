#include "memory.hpp"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

namespace pretended {
namespace {

constexpr size_t kCapacity = size_t{1} << 38;  // addresses of each device, of which none is given out twice
constexpr size_t kMemory = size_t{4} << 30;    // of each device
constexpr size_t kUnit = 512;                  // sizes are multiples of it

std::mutex mutex;
std::atomic<bool> captures{false};
std::atomic<int64_t> waits{0};

// ---- streams --------------------------------------------------------------------------------------------------------

thread_local int current = 0;
thread_local std::array<int, kDevices> streams = {0, kStreams};

struct Deferred {
  int stream;
  uint64_t time;
  std::function<void()> function;
};

struct Order {
  std::array<Clock, size_t{kDevices} * kStreams> clocks{};
  Clock host{};  // what the host has waited for
  std::array<int, kDevices> taken{};
  std::vector<Deferred> deferred;

  Order() {
    for (size_t i = 0; i < clocks.size(); ++i) clocks[i][i] = 1;
  }
  bool has_finished(const Access& access, int stream) const {
    const auto of = static_cast<size_t>(access.stream);
    return access.stream == stream || access.time <= clocks[static_cast<size_t>(stream)][of] || access.time <= host[of];
  }
  uint64_t now(int stream) const { return clocks[static_cast<size_t>(stream)][static_cast<size_t>(stream)]; }
  void tick(int stream) { ++clocks[static_cast<size_t>(stream)][static_cast<size_t>(stream)]; }
};

Order& order() {
  static auto* one = new Order;
  return *one;
}

void merge(Clock& into, const Clock& from) {
  for (size_t i = 0; i < into.size(); ++i) into[i] = std::max(into[i], from[i]);
}

std::string name_of(int stream) {
  return "pretended:" + std::to_string(device_of(stream)) + "/" + std::to_string(stream % kStreams);
}

void check(const Block& block, const Access& before, int stream, const char* kind) {
  if (before.stream < 0 || order().has_finished(before, stream)) return;
  TORCH_CHECK(before.life == block.life, "the memory of a freed tensor was used on stream ", name_of(stream),
              " before the ", kind, " of stream ", name_of(before.stream),
              " was waited for: the freed tensor lacks a record_stream");
  TORCH_CHECK(false, "a tensor was used on stream ", name_of(stream), " before the ", kind, " of stream ",
              name_of(before.stream), " was waited for");
}

// Counts a wait of the host, and runs what was deferred to it.
template <class Merge>
void host_waits(Merge merge_clocks) {
  TORCH_CHECK(!captures, "the host cannot wait for a device during a capture");
  ++waits;
  std::vector<Deferred> ready;
  {
    const std::scoped_lock lock(mutex);
    merge_clocks(order());
    auto& deferred = order().deferred;
    const auto later = std::stable_partition(deferred.begin(), deferred.end(), [](const Deferred& one) {
      return one.time > order().host[static_cast<size_t>(one.stream)];
    });
    std::move(later, deferred.end(), std::back_inserter(ready));
    deferred.erase(later, deferred.end());
  }
  for (const auto& one : ready) one.function();
}

void merge_into_host(Order& of, int stream) {
  merge(of.host, of.clocks[static_cast<size_t>(stream)]);
  of.tick(stream);
}

// ---- memory ---------------------------------------------------------------------------------------------------------

char* reservation() {
  static char* const begin = [] {
    constexpr size_t half = kCapacity * kDevices;
    void* const memory = mmap(nullptr, 2 * half, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(memory != MAP_FAILED, "cannot reserve memory");
    char* const alias = static_cast<char*>(memory) + half;
    TORCH_CHECK(mprotect(alias, half, PROT_READ | PROT_WRITE) == 0, "cannot open memory");
    return static_cast<char*>(memory);
  }();
  return begin;
}

struct Pool {
  size_t begin = 0;  // of the addresses that no block has had
  size_t limit = kMemory;
  size_t reserved = 0;
  c10::CachingDeviceAllocator::DeviceStats stats;

  std::optional<size_t> carve(size_t size) {
    if (reserved + size > limit) return std::nullopt;
    reserved += size;
    return std::exchange(begin, begin + size);
  }
};

size_t whole(size_t bytes) { return (bytes + kUnit - 1) / kUnit * kUnit; }

void free_block(void* block);

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const int device = current_device();
    if (bytes == 0) return {nullptr, as_device(device)};
    const int stream = current_stream(device);
    const size_t size = whole(bytes);
    const std::scoped_lock lock(mutex);
    Block* block = take_freed(stream, size);
    if (block == nullptr) block = make(device, stream, size);
    pool(device).stats.allocated_bytes[0].increase(size);
    live_[block->address] = block;
    return {block->address, block, &free_block, as_device(device)};
  }

  // The memory is overwritten, so that a use after the free changes a result: floats become NaN.
  void release(Block* block) {
    const std::scoped_lock lock(mutex);
    std::memset(alias_of(block->address), 0xFF, block->size);
    pool(block->device).stats.allocated_bytes[0].decrease(block->size);
    live_.erase(block->address);
    block->unfinished.clear();
    for (const int stream : block->recorded) block->unfinished.push_back({stream, order().now(stream), 0});
    block->recorded.clear();
    freed_[static_cast<size_t>(block->stream)][block->size].push_back(block);
  }

  Block* find(const void* address) {
    const std::scoped_lock lock(mutex);
    const auto found = live_.find(address);
    return found == live_.end() ? nullptr : found->second;
  }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {
    for (int device = 0; device < kDevices; ++device) synchronize_device(device);
    const std::scoped_lock lock(mutex);
    for (int device = 0; device < kDevices; ++device) drop_freed(device);
  }
  void recordStream(const c10::DataPtr& pointer, c10::Stream stream) override {
    if (auto* const block = find(pointer.get())) {
      const std::scoped_lock lock(mutex);
      const int number = number_of(stream);
      if (number == block->stream) return;
      if (std::find(block->recorded.begin(), block->recorded.end(), number) == block->recorded.end())
        block->recorded.push_back(number);
    }
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const std::scoped_lock lock(mutex);
    return pool(device).stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const std::scoped_lock lock(mutex);
    const auto& of = pool(device);
    return {of.limit - std::min(of.limit, of.reserved), of.limit};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(alias_of(to), alias_of(from), bytes);
  }
  void set_limit(int device, size_t bytes) {
    const std::scoped_lock lock(mutex);
    pool(device).limit = std::min(bytes, kMemory);
  }

 private:
  Pool& pool(int device) { return pools_.at(static_cast<size_t>(device)); }

  // Returns a freed block of this stream and size. Blocks whose recorded streams may still use them stay.
  Block* take_freed(int stream, size_t size) {
    auto& freed = freed_[static_cast<size_t>(stream)];
    const auto found = freed.find(size);
    if (found == freed.end()) return nullptr;
    auto& blocks = found->second;
    const auto is_ready = [&](const Block* block) {
      return std::all_of(block->unfinished.begin(), block->unfinished.end(),
                         [&](const Access& access) { return order().has_finished(access, stream); });
    };
    const auto ready = std::find_if(blocks.rbegin(), blocks.rend(), is_ready);
    if (ready == blocks.rend()) return nullptr;
    Block* const block = *ready;
    blocks.erase(std::next(ready).base());
    ++block->life;
    return block;
  }

  Block* make(int device, int stream, size_t size) {
    auto& of = pool(device);
    auto begin = of.carve(size);
    if (!begin) {
      for (int i = 0; i < kStreams; ++i) merge_into_host(order(), device * kStreams + i);
      drop_freed(device);
      begin = of.carve(size);
    }
    if (!begin) {
      TORCH_CHECK_WITH(OutOfMemoryError, false, "pretended out of memory. Tried to allocate ", size, " bytes. ",
                       as_device(device), " has a limit of ", of.limit, " bytes, of which ", of.reserved,
                       " are in use");
    }
    of.stats.reserved_bytes[0].increase(size);
    return new Block{reservation() + static_cast<size_t>(device) * kCapacity + *begin, size, device, stream};
  }

  void drop_freed(int device) {
    for (int i = 0; i < kStreams; ++i) {
      auto& freed = freed_[static_cast<size_t>(device * kStreams + i)];
      for (auto& [size, blocks] : freed)
        for (Block* const block : blocks) drop(block);
      freed.clear();
    }
  }

  void drop(Block* block) {
    auto& of = pool(block->device);
    of.stats.reserved_bytes[0].decrease(block->size);
    of.reserved -= block->size;
    constexpr size_t page = 4096;
    const auto alias = reinterpret_cast<uintptr_t>(alias_of(block->address));
    const auto first = (alias + page - 1) / page * page;
    const auto last = (alias + block->size) / page * page;
    if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
    delete block;
  }

  std::array<Pool, kDevices> pools_;
  std::array<std::unordered_map<size_t, std::vector<Block*>>, size_t{kDevices} * kStreams> freed_;
  std::unordered_map<const void*, Block*> live_;
};

Allocator& instance() {
  static auto* one = new Allocator;
  return *one;
}

void free_block(void* block) { instance().release(static_cast<Block*>(block)); }

}  // namespace

int current_device() { return current; }

void set_current_device(int device) {
  TORCH_CHECK(device >= 0 && device < kDevices, "invalid device ordinal ", device, ": there are ", kDevices);
  current = device;
}

int current_stream(int device) { return streams.at(static_cast<size_t>(device)); }

void set_current_stream(int stream) { streams.at(static_cast<size_t>(device_of(stream))) = stream; }

int take_stream(int device) {
  const std::scoped_lock lock(mutex);
  const int taken = order().taken.at(static_cast<size_t>(device))++;
  return device * kStreams + 1 + taken % (kStreams - 1);
}

void use(Block& block, int stream, bool writes) {
  const std::scoped_lock lock(mutex);
  check(block, block.write, stream, "write");
  const Access now{stream, order().now(stream), block.life};
  if (writes) {
    for (const auto& read : block.reads) check(block, read, stream, "read");
    block.reads.clear();
    block.write = now;
    return;
  }
  for (auto& read : block.reads) {
    if (read.stream != stream) continue;
    read = now;
    return;
  }
  block.reads.push_back(now);
}

void record(Event& event, int stream) {
  const std::scoped_lock lock(mutex);
  event.clock = order().clocks[static_cast<size_t>(stream)];
  event.stream = stream;
  order().tick(stream);
  if (event.is_timed)
    event.milliseconds =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void wait(int stream, const Event& event) {
  const std::scoped_lock lock(mutex);
  merge(order().clocks[static_cast<size_t>(stream)], event.clock);
}

void wait_for_stream(int stream, int other) {
  Event event;
  record(event, other);
  wait(stream, event);
}

void synchronize_event(const Event& event) {
  host_waits([&](Order& of) { merge(of.host, event.clock); });
}

void synchronize_stream(int stream) {
  host_waits([&](Order& of) { merge_into_host(of, stream); });
}

void synchronize_device(int device) {
  host_waits([&](Order& of) {
    for (int i = 0; i < kStreams; ++i) merge_into_host(of, device * kStreams + i);
  });
}

int64_t synchronizations() { return waits; }

void when_host_waits(int stream, std::function<void()> function) {
  const std::scoped_lock lock(mutex);
  order().deferred.push_back({stream, order().now(stream), std::move(function)});
}

void set_capturing(bool is_capturing) { captures = is_capturing; }

bool is_capturing() { return captures; }

Block* block_of(const c10::Storage& storage) {
  const auto& pointer = storage.unsafeGetStorageImpl()->data_ptr();
  if (pointer.get_deleter() == &free_block) return static_cast<Block*>(pointer.get_context());
  return pointer.get() == nullptr ? nullptr : instance().find(pointer.get());
}

void* alias_of(const void* address) {
  return address == nullptr ? nullptr : const_cast<char*>(static_cast<const char*>(address)) + kCapacity * kDevices;
}

bool is_device_address(const void* address) {
  return address >= reservation() && address < reservation() + kCapacity * kDevices;
}

c10::DeviceAllocator& allocator() { return instance(); }

void set_memory_limit(int device, size_t bytes) { instance().set_limit(device, bytes); }

void resize_storage(const c10::Storage& storage, size_t bytes) {
  const int device = storage.device().index();
  const int before = current_device();
  set_current_device(device);
  auto* const impl = storage.unsafeGetStorageImpl();
  try {
    auto memory = instance().allocate(bytes);
    const size_t kept = std::min(bytes, impl->nbytes());
    if (kept > 0) {
      const int stream = current_stream(device);
      use(*block_of(storage), stream, false);
      use(*static_cast<Block*>(memory.get_context()), stream, true);
      std::memcpy(alias_of(memory.get()), alias_of(impl->data_ptr().get()), kept);
    }
    impl->set_data_ptr_noswap(std::move(memory));
    impl->set_nbytes(bytes);
  } catch (...) {
    set_current_device(before);
    throw;
  }
  set_current_device(before);
}

}  // namespace pretended

#include "tensor/blocks.hpp"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "from_c.hpp"
#include "host/tensors.hpp"
#include "tensor/cast.hpp"

namespace habana_mp::tensor {

namespace {

std::atomic<std::uint64_t> block_from{~std::uint64_t{0}};

constexpr std::size_t alignment = 64;
constexpr std::uintptr_t large_page = std::uintptr_t{2} << 20;

struct Block {
  void* memory;
  std::uint64_t bytes;
};

// Tensors are freed in any thread, with or without the GIL. So the lock is held for a few instructions only, and never
// while memory is returned to the operating system.
struct Waiting {
  std::mutex lock;
  std::vector<Block> blocks;
  std::uint64_t bytes = 0;
  std::uint64_t most = 0;
  std::size_t next_to_go = 0;
};

// Never destroyed: tensors may outlive the interpreter's modules.
constinit NeverDestroyed<Waiting> the_blocks;
Waiting& waiting() noexcept { return *the_blocks; }

// Registered when the module is loaded. A fork first takes the lock, so no thread that the child lacks can hold it.
[[maybe_unused]] const int fork_handlers =
    pthread_atfork([]() noexcept { waiting().lock.lock(); }, []() noexcept { waiting().lock.unlock(); },
                   []() noexcept { waiting().lock.unlock(); });

void* take(std::uint64_t bytes) {
  Waiting& all = waiting();
  {
    const std::lock_guard held(all.lock);
    const auto found =
        std::find_if(all.blocks.begin(), all.blocks.end(), [=](const Block& one) { return one.bytes == bytes; });
    if (found != all.blocks.end()) {
      void* const memory = found->memory;
      *found = all.blocks.back();
      all.blocks.pop_back();
      all.bytes -= bytes;
      return memory;
    }
  }
  void* const memory = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  ask_for_large_pages(memory, bytes);
  return memory;
}

// Adds the block to those that wait, and returns an empty one. Otherwise returns a block to free: this one if it may
// not wait, or another one that must make room before the caller tries again.
Block put(Waiting& all, Block block) {
  const std::lock_guard held(all.lock);
  if (block.bytes > all.most) return block;
  if (all.bytes + block.bytes > all.most) {
    // If a step needs more than may wait, the oldest block is the one that is needed next, so it is not always chosen.
    Block& place = all.blocks[all.next_to_go++ % all.blocks.size()];
    all.bytes -= place.bytes;
    const Block gone = std::exchange(place, all.blocks.back());
    all.blocks.pop_back();
    return gone;
  }
  try {
    all.blocks.push_back(block);
  } catch (const std::bad_alloc&) {
    return block;
  }
  all.bytes += block.bytes;
  return {nullptr, 0};
}

void give_back(void* memory, std::uint64_t bytes) noexcept {
  for (;;) {
    const Block gone = put(waiting(), {memory, bytes});
    std::free(gone.memory);
    if (gone.memory == nullptr || gone.memory == memory) return;
  }
}

// The memory behind a DLPack capsule.
struct DlpackContext {
  DLManagedTensor managed{};
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  std::uint64_t bytes = 0;
};

void free_dlpack_context(DLManagedTensor* managed) noexcept {
  const std::unique_ptr<DlpackContext> lent(static_cast<DlpackContext*>(managed->manager_ctx));
  give_back(managed->dl_tensor.data, lent->bytes);
}

// The destructor of a capsule. Frees the block if the capsule was never consumed.
void end_capsule(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, "dltensor") == 0) return;
  free_dlpack_context(static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor")));
}

}  // namespace

void ask_for_large_pages(void* memory, std::uint64_t bytes) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t begin = (address + large_page - 1) / large_page * large_page;
  const std::uintptr_t end = (address + bytes) / large_page * large_page;
  if (memory != nullptr && begin < end)
    madvise(static_cast<char*>(memory) + (begin - address), end - begin, MADV_HUGEPAGE);
}

bool is_block(std::uint64_t bytes) noexcept { return bytes >= block_from.load(std::memory_order_relaxed); }

void keep_blocks(std::uint64_t from, std::uint64_t most_waiting) noexcept {
  block_from.store(from, std::memory_order_relaxed);
  Waiting& all = waiting();
  std::vector<Block> gone;
  {
    const std::lock_guard held(all.lock);
    all.most = most_waiting;
    all.bytes = 0;
    std::swap(gone, all.blocks);
  }
  for (const Block& one : gone) std::free(one.memory);
}

Owned tensor_in_block(const host::Geometry& like, Kind kind, void*& values) {
  const std::uint64_t bytes = bytes_as(kind, like.count());
  auto lent = std::make_unique<DlpackContext>(DlpackContext{{}, like.sizes, like.strides, bytes});
  void* const memory = take(bytes);
  if (memory == nullptr) return nullptr;
  lent->managed.dl_tensor = {memory,
                             {kDLCPU, 0},
                             static_cast<std::int32_t>(like.sizes.size()),
                             host::dlpack_type(kind),
                             lent->sizes.data(),
                             lent->strides.data(),
                             0};
  lent->managed.manager_ctx = lent.get();
  lent->managed.deleter = free_dlpack_context;
  const Owned capsule(PyCapsule_New(&lent->managed, "dltensor", from_c<end_capsule>.pointer()));
  if (!capsule) {
    give_back(memory, bytes);
    clear_error();
    return nullptr;
  }
  lent.release();  // NOLINT(bugprone-unused-return-value): the capsule's now
  values = memory;
  Owned made = host::from_dlpack(capsule.get());
  clear_error();
  return made;
}

std::uint64_t bytes_waiting() noexcept {
  const std::lock_guard held(waiting().lock);
  return waiting().bytes;
}

}  // namespace habana_mp::tensor

#include "tensor/blocks.hpp"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "tensor/cast.hpp"

namespace habana_mp::tensor {

std::atomic<std::uint64_t> detail::block_from{~std::uint64_t{0}};

namespace {

constexpr std::size_t alignment = 64;

struct Block {
  void* memory;
  std::uint64_t bytes;
};

// Tensors end in any thread, with or without the GIL, and in a forked child perhaps while a thread that it does not
// have held the lock: a cast that does not get it at once goes to the C library.
struct Waiting {
  std::mutex lock;
  std::vector<Block> blocks;
  std::uint64_t bytes = 0;
  std::uint64_t most = 0;
  std::size_t next_to_go = 0;
};

// Never destroyed: tensors may outlive the interpreter's modules.
Waiting& waiting() {
  static auto* const the_blocks = new Waiting;
  return *the_blocks;
}

// With the lock, unless somebody has it for so long that he must be a thread which a forked child does not have.
template <class Work>
void with_lock(Waiting& all, const Work& work) {
  for (int tried = 0; tried < 10'000; ++tried) {
    if (const std::unique_lock held(all.lock, std::try_to_lock); held) return work();
    std::this_thread::yield();
  }
}

void* take(std::uint64_t bytes) {
  Waiting& all = waiting();
  if (const std::unique_lock held(all.lock, std::try_to_lock); held) {
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
  return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

void give_back(void* memory, std::uint64_t bytes) noexcept {
  Waiting& all = waiting();
  std::unique_lock held(all.lock, std::try_to_lock);
  if (!held || bytes > all.most) return std::free(memory);
  // Whichever goes: in a step that needs more than may wait, the oldest is what is needed next.
  while (all.bytes + bytes > all.most) {
    Block& gone = all.blocks[all.next_to_go++ % all.blocks.size()];
    all.bytes -= gone.bytes;
    std::free(gone.memory);
    gone = all.blocks.back();
    all.blocks.pop_back();
  }
  try {
    all.blocks.push_back({memory, bytes});
  } catch (const std::bad_alloc&) {
    return std::free(memory);
  }
  all.bytes += bytes;
}

// What a capsule of DLPack holds.
struct Lent {
  DLManagedTensor managed{};
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  std::uint64_t bytes = 0;
};

void end_lent(DLManagedTensor* managed) {
  const std::unique_ptr<Lent> lent(static_cast<Lent*>(managed->manager_ctx));
  give_back(managed->dl_tensor.data, lent->bytes);
}

// Of a capsule that nobody took.
void end_capsule(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, "dltensor") == 0) return;
  end_lent(static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor")));
}

}  // namespace

void keep_blocks(std::uint64_t from, std::uint64_t most_waiting) noexcept {
  detail::block_from.store(from, std::memory_order_relaxed);
  Waiting& all = waiting();
  with_lock(all, [&] {
    all.most = most_waiting;
    for (const Block& one : std::exchange(all.blocks, {})) std::free(one.memory);
    all.bytes = 0;
  });
}

PyObject* tensor_in_block(const Geometry& like, Kind kind, void*& values) noexcept {
  std::int64_t count = 1;
  for (const std::int64_t size : like.sizes) count *= size;
  const std::uint64_t bytes = bytes_as(kind, count);
  void* const memory = take(bytes);
  if (memory == nullptr) return nullptr;
  std::unique_ptr<Lent> lent(new (std::nothrow) Lent);
  if (lent == nullptr) {
    give_back(memory, bytes);
    return nullptr;
  }
  lent->sizes = like.sizes;
  lent->strides = like.strides;
  lent->bytes = bytes;
  lent->managed.dl_tensor = {memory,
                             {kDLCPU, 0},
                             static_cast<std::int32_t>(like.sizes.size()),
                             dlpack_type(kind),
                             lent->sizes.data(),
                             lent->strides.data(),
                             0};
  lent->managed.manager_ctx = lent.get();
  lent->managed.deleter = end_lent;
  PyObject* capsule = PyCapsule_New(&lent->managed, "dltensor", end_capsule);
  if (capsule == nullptr) {
    give_back(memory, bytes);
    PyErr_Clear();
    return nullptr;
  }
  lent.release();  // NOLINT(bugprone-unused-return-value): the capsule's now
  values = memory;
  PyObject* made = PyObject_CallOneArg(api.from_dlpack, capsule);
  Py_DECREF(capsule);
  PyErr_Clear();
  return made;
}

std::uint64_t bytes_waiting() noexcept {
  Waiting& all = waiting();
  std::uint64_t bytes = 0;
  with_lock(all, [&] { bytes = all.bytes; });
  return bytes;
}

}  // namespace habana_mp::tensor

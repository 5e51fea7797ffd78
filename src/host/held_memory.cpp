#include "host/held_memory.hpp"

#include <pthread.h>

#include <array>
#include <cstdint>
#include <mutex>
#include <new>
#include <unordered_map>

#include "errors.hpp"
#include "forks.hpp"
#include "host/finding.hpp"
#include "host/inside.hpp"
#include "host/ledger.hpp"
#include "host/symbols.hpp"

namespace habana_mp::host {

namespace {

Assumption storage_aliases{
    "torch.storage-aliases",
    "aoti_torch__reinterpret_tensor makes a tensor that holds a storage, without Python; "
    "aoti_torch_delete_tensor_object ends it",
    "what they take, by torch's header in releases that are not known; the owners of a sample's storage are counted",
    "large kernels on tensors keep the GIL, and no cast of a weight is kept"};

Assumption storage_deleter{
    "torch.storage-deleter", "a storage frees its memory by the function that it holds, called with the memory",
    "another function is put into a sample's storage, and is called once with its memory when the sample ends",
    "a storage that another thread resizes in place while a kernel runs is not protected"};

// An at::Tensor*, as in view.cpp.
using Handle = void*;
int (*alias_of)(Handle self, std::int64_t dimensions, const std::int64_t* sizes, const std::int64_t* strides,
                std::int64_t offset, Handle* made) = nullptr;
int (*delete_tensor)(Handle) = nullptr;

using Deleter = void (*)(void*);

// Memory that kernels use now. If the storage frees it in the meantime, the last kernel that ends frees it instead.
struct Pinned {
  std::uint32_t pins = 0;
  bool is_freed = false;
};
struct Pins {
  std::mutex lock;
  std::unordered_map<void*, Pinned> all;
};
// Never destroyed: storages may outlive the interpreter's modules.
Pins& pins() {
  static auto* const the_pins = new Pins;
  return *the_pins;
}

// Registered when the module is loaded. A child has none of the threads that might hold the lock.
[[maybe_unused]] const int fork_handlers =
    pthread_atfork([]() noexcept { pins().lock.lock(); }, []() noexcept { pins().lock.unlock(); },
                   []() noexcept { pins().lock.unlock(); });

// Returns the function with which torch's allocator frees memory.
Deleter own_deleter() noexcept { return reinterpret_cast<Deleter>(const_cast<void*>(inside.own_deleter)); }

void free_by_torch(void* memory) noexcept { own_deleter()(memory); }

// Replaces torch's own deleter in a storage. Any thread may call it, with or without the GIL. If the memory of a
// storage moves to another storage, this deleter stays in that one.
void free_when_unpinned(void* memory) {
  {
    const std::lock_guard held(pins().lock);
    const auto found = pins().all.find(memory);
    if (found != pins().all.end()) {
      found->second.is_freed = true;
      return;
    }
  }
  free_by_torch(memory);
}

Deleter* deleter_in(const char* storage) {
  return reinterpret_cast<Deleter*>(const_cast<char*>(storage) + inside.deleter);
}

// Pins memory of torch's own allocator and returns it. Null when memory runs out, and for memory of another allocator,
// which torch cannot resize.
void* pin(const char* storage) noexcept {
  void* const memory = const_cast<char*>(load<const char*>(storage, inside.data));
  const auto* deleter = load<const void*>(storage, inside.deleter);
  const bool is_ours = deleter == reinterpret_cast<const void*>(&free_when_unpinned);
  if (!storage_deleter.holds() || memory == nullptr || load<const void*>(storage, inside.context) != memory ||
      (deleter != inside.own_deleter && !is_ours)) {
    return nullptr;
  }
  try {
    const std::lock_guard held(pins().lock);
    ++pins().all[memory].pins;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  *deleter_in(storage) = &free_when_unpinned;
  return memory;
}

void unpin(const char* storage, void* memory) noexcept {
  bool is_freed = false;
  {
    const std::lock_guard held(pins().lock);
    const auto found = pins().all.find(memory);
    if (--found->second.pins != 0) return;
    is_freed = found->second.is_freed;
    pins().all.erase(found);
  }
  if (is_freed) {
    free_by_torch(memory);
  } else if (load<const void*>(storage, inside.context) == memory && *deleter_in(storage) == &free_when_unpinned) {
    *deleter_in(storage) = own_deleter();
  }
}

}  // namespace

struct HeldMemory::Node {
  Handle alias = nullptr;  // holds the storage
  const char* storage = nullptr;
  void* memory = nullptr;  // pinned, or null
  pthread_t thread{};
  Node* before = nullptr;
  Node* behind = nullptr;
};

namespace {

// The list of all nodes, guarded by the GIL.
HeldMemory::Node* first = nullptr;

void add(HeldMemory::Node& node) noexcept {
  node.thread = pthread_self();
  node.behind = std::exchange(first, &node);
  if (node.behind != nullptr) node.behind->before = &node;
}

void take_out(HeldMemory::Node& node) noexcept {
  (node.before == nullptr ? first : node.before->behind) = node.behind;
  if (node.behind != nullptr) node.behind->before = node.before;
}

void release(HeldMemory::Node* node) noexcept {
  take_out(*node);
  if (node->memory != nullptr) unpin(node->storage, node->memory);
  delete_tensor(node->alias);
  delete node;
}

// True for a dense tensor on the CPU. For other tensors torch makes no alias and writes an error to the console.
bool has_alias(PyObject* tensor) noexcept {
  const std::uint64_t keys = keys_of(tensor);
  return can_look_inside() && is_plain_tensor(tensor) && (keys & inside.least) == inside.least &&
         (keys & ~(inside.plain | inside.negative)) == 0;
}

Handle make_alias(PyObject* tensor) noexcept {
  constexpr std::array<std::int64_t, 1> nothing{0};
  constexpr std::array<std::int64_t, 1> stride{1};
  Handle made = nullptr;
  const Handle given = reinterpret_cast<char*>(tensor) + detail::layout.implementation;
  if (alias_of == nullptr || alias_of(given, 1, nothing.data(), stride.data(), 0, &made) != 0) return nullptr;
  return made;
}

Owned make_sample() {
  const Owned list = made_by(
      "import torch\n"
      "def make():\n"
      "    with torch.inference_mode(False):\n"
      "        return [torch.empty(64, device='cpu')]\n");
  if (!list) clear_error();
  return list ? Owned::borrowed(PyList_GET_ITEM(list.get(), 0)) : nullptr;
}

bool aliases_hold(PyObject* sample) noexcept {
  const auto owners = [sample] { return snapshot_of(sample).owners; };
  const std::uint32_t before = owners();
  const Handle alias = make_alias(sample);
  const bool holds = alias != nullptr && owners() == before + 1;
  if (alias != nullptr) delete_tensor(alias);
  return holds && owners() == before;
}

int calls_of_sample = 0;
void* memory_of_sample = nullptr;

bool deleter_is_called(Owned sample) noexcept {
  const char* storage = storage_of(sample.get());
  if (load<const void*>(storage, inside.deleter) != inside.own_deleter) return false;
  memory_of_sample = const_cast<char*>(memory_of(storage));
  *deleter_in(storage) = [](void* memory) {
    if (memory == memory_of_sample) ++calls_of_sample;
    free_by_torch(memory);
  };
  sample.reset();
  return calls_of_sample == 1;
}

}  // namespace

HeldMemory::HeldMemory(PyObject* tensor) noexcept : node_(nullptr) {
  if (alias_of == nullptr || !has_alias(tensor)) return;
  const Handle alias = make_alias(tensor);
  if (alias == nullptr) return;
  node_ = new (std::nothrow) Node;
  if (node_ == nullptr) {
    delete_tensor(alias);
    return;
  }
  node_->alias = alias;
  node_->storage = storage_of(tensor);
  node_->memory = pin(node_->storage);
  add(*node_);
}

const char* HeldMemory::storage() const noexcept { return node_ == nullptr ? nullptr : node_->storage; }

[[maybe_unused]] static const bool is_mended = forks::mend_in_child(&forget_memory_of_other_threads);

HeldMemory::~HeldMemory() {
  if (node_ != nullptr) release(node_);
}

void forget_memory_of_other_threads() noexcept {
  const pthread_t here = pthread_self();
  for (HeldMemory::Node* node = first; node != nullptr;) {
    const bool is_here = pthread_equal(node->thread, here) != 0;
    HeldMemory::Node* const next = node->behind;
    if (!is_here) release(node);  // other code may run
    node = is_here ? next : first;
  }
}

void bind_held_memory() {
  constexpr const char* header = "torch/csrc/inductor/aoti_torch/c/shim.h";
  const bool may_look = can_look_inside();
  if (may_look && !storage_aliases.is_broken()) {
    find({"libtorch_cpu.so", "aoti_torch__reinterpret_tensor", header,
          "AOTITorchError aoti_torch__reinterpret_tensor(AtenTensorHandle self, int64_t ndim, const int64_t* "
          "sizes_ptr, const int64_t* strides_ptr, int64_t storage_offset, AtenTensorHandle* ret_new_tensor"},
         alias_of);
    find({"libtorch_cpu.so", "aoti_torch_delete_tensor_object", header,
          "AOTITorchError aoti_torch_delete_tensor_object(AtenTensorHandle tensor);"},
         delete_tensor);
  }
  Owned sample = may_look ? make_sample() : nullptr;
  const bool are_there = alias_of != nullptr && delete_tensor != nullptr && sample;
  if (!storage_aliases.settle(are_there && aliases_hold(sample.get()))) alias_of = nullptr;
  storage_deleter.settle(sample && !storage_deleter.is_broken() && deleter_is_called(std::move(sample)));
  clear_error();
}

}  // namespace habana_mp::host

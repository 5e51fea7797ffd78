#include "host/held_memory.hpp"

#include <pthread.h>

#include <array>
#include <cstdint>
#include <memory>

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

// An at::Tensor*, as in view.cpp.
using Handle = void*;
int (*alias_of)(Handle self, std::int64_t dimensions, const std::int64_t* sizes, const std::int64_t* strides,
                std::int64_t offset, Handle* made) = nullptr;
int (*delete_tensor)(Handle) = nullptr;

}  // namespace

struct HeldMemory::Node {
  Handle alias = nullptr;  // holds the storage
  const char* storage = nullptr;
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

}  // namespace

HeldMemory::HeldMemory(PyObject* tensor) : node_(nullptr) {
  if (alias_of == nullptr || !has_alias(tensor)) return;
  auto node = std::make_unique<Node>();
  node->alias = make_alias(tensor);
  if (node->alias == nullptr) return;
  node->storage = storage_of(tensor);
  node_ = node.release();
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
  const Owned sample = may_look ? make_sample() : nullptr;
  const bool are_there = alias_of != nullptr && delete_tensor != nullptr && sample;
  if (!storage_aliases.settle(are_there && aliases_hold(sample.get()))) alias_of = nullptr;
}

}  // namespace habana_mp::host

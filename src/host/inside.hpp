// Reads the internals of a tensor, to detect in a few nanoseconds whether its values are unchanged.
#pragma once

#include <cstdint>
#include <vector>

#include "host/finding.hpp"
#include "host/reader.hpp"
#include "owned.hpp"

namespace habana_mp::host {

// Offsets in bytes. Each was verified on tensors of all kinds when torch was bound.
struct Inside {
  std::ptrdiff_t holders = 0;           // of the number of owners, in a tensor's implementation
  std::ptrdiff_t keys = 0;              // of the dispatch keys, in a tensor's implementation
  std::uint64_t plain = 0;              // the keys of a plain dense tensor on the CPU
  std::uint64_t least = 0;              // the keys of a plain tensor that a tensor of inference mode has too
  std::uint64_t negative = 0;           // the key of a view with the negative bit
  std::uint64_t meta = 0;               // the keys that tensors without memory have alone: those on device `meta`
  std::uint64_t accelerator = 0;        // the keys of a plain dense tensor on torch's accelerator; 0 until one was met
  std::uint64_t least_accelerator = 0;  // those of a tensor of inference mode there
  std::ptrdiff_t storage = 0;           // of the storage's address, in a tensor's implementation
  std::ptrdiff_t counter = 0;           // of the version counter's address, in a tensor's implementation
  std::ptrdiff_t version = 0;           // of the version, in the version counter
  std::ptrdiff_t counter_owners = 0;    // of the number of owners, in the version counter
  std::ptrdiff_t owners = 0;            // of the number of owners, in a storage
  std::uint32_t by_object = 0;          // owners that a storage's Python object adds, once it exists
  std::ptrdiff_t data = 0;              // of the memory's address, in a storage
  std::ptrdiff_t context = 0;           // of the context that the memory's owner has stored, in a storage
  std::ptrdiff_t deleter = 0;           // of the function that frees the memory, in a storage
  std::ptrdiff_t resizable = 0;         // of the flag that allows resizing, in a storage
  std::ptrdiff_t allocator = 0;         // of the allocator that resizes it, in a storage; 0 if it was not found
  const void* own_deleter = nullptr;    // the deleter of torch's own allocator
  const void* slice_deleter = nullptr;  // the deleter of a storage that is a slice of another one
};
extern Inside inside;

// Finds the offsets. If it fails, only `can_look_inside` may be used from this file. Call it after bind_reader.
void bind_inside();
bool can_look_inside() noexcept;

// Identifies the values of a tensor. If two snapshots of one tensor have the same memory and version, torch has
// registered no write in between.
struct Snapshot {
  const char* implementation = nullptr;
  const char* storage = nullptr;
  const char* data = nullptr;
  const char* counter = nullptr;  // null for a tensor of inference mode, which has no version
  std::uint32_t version = 0;
  std::uint32_t owners = 0;          // of the storage
  std::uint32_t counter_owners = 0;  // of the version counter

  // True if the memory is the same, whatever it contains.
  bool same_memory(const Snapshot& other) const {
    return implementation == other.implementation && storage == other.storage && data == other.data &&
           counter == other.counter;
  }
  // True if something has the memory but not the version counter, such as a `.data` alias. Code can write through it
  // without a new version. `by_object` is the number of owners that the storage's Python object adds.
  [[nodiscard]] bool has_uncounted_owner(std::uint32_t by_object) const { return owners > counter_owners + by_object; }
};

inline const char* storage_of(PyObject* tensor) noexcept {
  const char* implementation = detail::implementation_of(tensor);
  return implementation == nullptr ? nullptr : load<const char*>(implementation, inside.storage);
}

namespace detail {
bool has_sparse_layout(PyObject* tensor) noexcept;
}
// A tensor with a storage is not sparse. Tensors of torch.func have no storage either, so their layout decides.
inline bool is_sparse(PyObject* tensor) noexcept {
  return (inside.storage == 0 || storage_of(tensor) == nullptr) && detail::has_sparse_layout(tensor);
}

inline Snapshot snapshot_of(PyObject* tensor) noexcept {
  Snapshot snapshot;
  snapshot.implementation = detail::implementation_of(tensor);
  if (snapshot.implementation == nullptr) return snapshot;
  snapshot.storage = load<const char*>(snapshot.implementation, inside.storage);
  snapshot.counter = load<const char*>(snapshot.implementation, inside.counter);
  if (snapshot.storage != nullptr) {
    snapshot.data = load<const char*>(snapshot.storage, inside.data);
    snapshot.owners = load<std::uint32_t>(snapshot.storage, inside.owners);
  }
  if (snapshot.counter != nullptr) {
    snapshot.version = load<std::uint32_t>(snapshot.counter, inside.version);
    snapshot.counter_owners = load<std::uint32_t>(snapshot.counter, inside.counter_owners);
  }
  return snapshot;
}

// True if something has the tensor's memory but not its version counter, a torch.UntypedStorage among it.
bool has_uncounted_owner(PyObject* tensor);
// True if no other tensor, storage or NumPy array holds the tensor's memory.
bool holds_its_memory_alone(PyObject* tensor);
// True if a storage's memory comes from torch's allocator, or from a file that is mapped for this process alone. Other
// code can then get the memory only through torch.
bool is_known_memory(const char* storage);
// True if the memory of these tensors is freed by the same function: that of their device's allocator, if one of them
// is a new tensor.
bool is_memory_of_one_allocator(PyObject* one, PyObject* other) noexcept;
// True if NumPy is known to have had the memory of a storage.
bool numpy_had_memory(const char* storage) noexcept;
// Returns the address of a torch.UntypedStorage; null if it cannot be read.
const char* address_of_storage(PyObject* storage) noexcept;
// Returns the address of a storage's memory.
const char* memory_of(const char* storage) noexcept;

// The address and the layout of a tensor's values.
struct Geometry {
  const void* values = nullptr;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;

  [[nodiscard]] std::int64_t count() const noexcept {
    std::int64_t all = 1;
    for (const std::int64_t size : sizes) all *= size;
    return all;
  }
  // True if the values have no gaps and do not overlap.
  [[nodiscard]] bool is_dense() const;
};

// Reads the geometry of a plain tensor on the CPU. False for other tensors, or if the values cannot be reached. Runs no
// Python code.
bool read_geometry(PyObject* tensor, Geometry& geometry);

// The same for a plain tensor on any device. Values that are not on the CPU must not be read.
bool read_geometry_anywhere(PyObject* tensor, Geometry& geometry);

// True if the sizes and strides are equal. Without `same_strides` a dimension of one element may have any stride.
bool has_same_layout(const DLTensor& view, const Geometry& geometry, bool same_strides) noexcept;

// True if the tensor has this layout. A dimension of one element may have any stride.
bool has_layout(PyObject* tensor, const Geometry& geometry) noexcept;

// Returns the dispatch keys of a tensor; 0 if it has none.
inline std::uint64_t keys_of(PyObject* tensor) noexcept {
  const char* implementation = detail::implementation_of(tensor);
  return implementation == nullptr ? 0 : load<std::uint64_t>(implementation, inside.keys);
}

// True for a plain dense tensor on torch's accelerator. False if that is unknown.
inline bool is_plain_on_accelerator(PyObject* tensor) noexcept {
  if (inside.accelerator == 0 || !is_plain_tensor(tensor)) return false;
  const std::uint64_t keys = keys_of(tensor);
  return keys == inside.accelerator || keys == inside.least_accelerator;
}

// True if this plain tensor has the negative bit or its keys are unknown.
inline bool is_negative(PyObject* tensor) noexcept {
  const std::uint64_t keys = keys_of(tensor);
  return keys == 0 || (keys & inside.negative) != 0;
}

// Returns an object that holds a tensor as a C++ owner during its lifetime; null without an exception on failure. torch
// keeps the Python object of a tensor alive while C++ code holds the tensor. If only Python holds it, torch acquires
// the GIL each time an operation takes or releases the tensor, several times in a call.
Owned make_holder(PyObject* tensor) noexcept;

// True if one reference and, with `has_holder`, one holder are the only owners of this tensor and its memory. For a
// plain tensor that never was part of a graph.
bool is_held_once(PyObject* tensor, bool has_holder) noexcept;

}  // namespace habana_mp::host

// Looking inside a tensor: what tells, in a few nanoseconds, whether its values are still the same.
#pragma once

#include <cstdint>
#include <vector>

#include "host/finding.hpp"
#include "host/reader.hpp"
#include "owned.hpp"

namespace habana_mp::host {

// Offsets in bytes, each verified on tensors of all kinds when torch was bound.
struct Inside {
  std::ptrdiff_t holders = 0;           // of the number of owners of a tensor's implementation, in it
  std::ptrdiff_t keys = 0;              // of the dispatch keys in a tensor's implementation
  std::uint64_t plain = 0;              // the keys of a plain dense tensor on the CPU
  std::uint64_t least = 0;              // those of them that one of inference mode has
  std::uint64_t negative = 0;           // the key of a view whose values count as negated
  std::ptrdiff_t storage = 0;           // of the storage's address in a tensor's implementation
  std::ptrdiff_t counter = 0;           // of the version counter's address in a tensor's implementation
  std::ptrdiff_t version = 0;           // in the version counter
  std::ptrdiff_t owners = 0;            // of the number of owners in a storage
  std::ptrdiff_t data = 0;              // of the memory's address in a storage
  std::ptrdiff_t context = 0;           // of what the memory's owner gave along, in a storage
  std::ptrdiff_t deleter = 0;           // of the function that frees the memory, in a storage
  std::ptrdiff_t resizable = 0;         // of whether it may be resized, in a storage
  std::ptrdiff_t allocator = 0;         // of the allocator that resizes it, in a storage; 0 where it was not found
  const void* own_deleter = nullptr;    // what frees the memory of torch's own allocator
  const void* slice_deleter = nullptr;  // that of a storage which is a slice of another one
};
extern Inside inside;

// Finds them. Where it cannot, nothing but `can_look_inside` may be used of this file. To be called after bind_reader.
void bind_inside();
bool can_look_inside() noexcept;

// What identifies a tensor's values. Two equal snapshots of one tensor: nobody who tells torch has written in between.
struct Snapshot {
  const char* implementation = nullptr;
  const char* storage = nullptr;
  const char* data = nullptr;
  const char* counter = nullptr;  // null: a tensor of inference mode, which has no version
  std::uint32_t version = 0;
  std::uint32_t owners = 0;  // of the storage

  bool operator==(const Snapshot&) const = default;
  // The same memory, whatever is in it.
  bool same_memory(const Snapshot& other) const {
    return implementation == other.implementation && storage == other.storage && data == other.data &&
           counter == other.counter;
  }
  // And in the same hands.
  bool same_owners(const Snapshot& other) const { return same_memory(other) && owners == other.owners; }
};

inline const char* storage_of(PyObject* tensor) noexcept {
  const char* implementation = detail::implementation_of(tensor);
  return implementation == nullptr ? nullptr : load<const char*>(implementation, inside.storage);
}

namespace detail {
bool has_sparse_layout(PyObject* tensor) noexcept;
}
// A tensor with a storage is none. Those of torch.func have no storage either.
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
  if (snapshot.counter != nullptr) snapshot.version = load<std::uint32_t>(snapshot.counter, inside.version);
  return snapshot;
}

// Does nobody else hold the tensor's memory: no other tensor, storage or array of NumPy? `views` of it are known to the
// caller.
bool holds_its_memory_alone(PyObject* tensor, std::uint32_t views);
// Does a storage's memory come from torch's allocator, or from a file that is mapped for this process alone? Whoever
// gets hold of it later does so through torch. Memory that NumPy was seen to have had counts only where the caller
// knows what became of its arrays.
bool is_known_memory(const char* storage, bool knows_arrays);
bool is_of_torch(const char* storage) noexcept;
// Is it seen of a storage's memory that NumPy has had it?
bool tells_of_arrays(const char* storage) noexcept;
// The storage that this one is a slice of; null where it is none.
const char* storage_behind(const char* storage) noexcept;
// A storage, and the file under it, may be gone, and another one may lie where it lay: files are asked for anew.
void forget_files() noexcept;
// Of a torch.UntypedStorage; null where it does not tell.
const char* address_of_storage(PyObject* storage) noexcept;
// Where the memory of a storage begins.
const char* memory_of(const char* storage) noexcept;

// How a tensor's values lie in memory.
struct Geometry {
  const void* values = nullptr;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;

  [[nodiscard]] std::int64_t count() const noexcept {
    std::int64_t all = 1;
    for (const std::int64_t size : sizes) all *= size;
    return all;
  }
  // Without gaps, and no value twice?
  [[nodiscard]] bool is_dense() const;
};

// Of a plain tensor on the CPU; false where it is none or its values cannot be reached. Runs no Python code.
bool read_geometry(PyObject* tensor, Geometry& geometry);

// Do the sizes and strides agree? Without `same_strides` a dimension of one element may have any stride.
bool lies_alike(const DLTensor& view, const Geometry& geometry, bool same_strides) noexcept;

// Does it lie as this says? At another place perhaps: then a dimension of one element may have any stride.
bool has_geometry(PyObject* tensor, const Geometry& geometry, bool at_its_place) noexcept;

// The keys under which torch dispatches what is done with a tensor; 0 where there are none.
inline std::uint64_t keys_of(PyObject* tensor) noexcept {
  const char* implementation = detail::implementation_of(tensor);
  return implementation == nullptr ? 0 : load<std::uint64_t>(implementation, inside.keys);
}

// Is this plain tensor a view whose values count as negated?
inline bool is_negative(PyObject* tensor) noexcept {
  const std::uint64_t keys = keys_of(tensor);
  return keys == 0 || (keys & inside.negative) != 0;
}

// Something that holds a tensor beside Python, as long as it lives; null without an exception where there is none to be
// had. Torch keeps the Python object of a tensor alive while anybody in C++ holds the tensor: one
// that only Python holds asks for the GIL each time an operation takes it and lets go of it, several times in a call.
Owned make_holder(PyObject* tensor) noexcept;

// Does nothing else hold this tensor or its memory than one reference and perhaps a holder? For a plain tensor that
// never was a part of a graph.
bool is_held_once(PyObject* tensor, bool has_holder) noexcept;

}  // namespace habana_mp::host

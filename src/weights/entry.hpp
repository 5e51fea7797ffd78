// The entries of the cache, one for each weight and precision. Only for src/weights and engine/own_products.cpp.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "host/inside.hpp"
#include "host/modes.hpp"
#include "tensor/cast.hpp"
#include "weights/cache.hpp"

namespace habana_mp::weights {

using host::Snapshot;

// This many values of a weight on the CPU are compared at each use. The comparison notices writes of C code through a
// pointer, which torch does not notice: such code usually writes the whole weight.
constexpr std::size_t sample_count = 8;
using Samples = std::array<std::uint32_t, sample_count>;

// In place of an accelerator's number.
constexpr int on_cpu = -1;
constexpr int on_no_accelerator = -2;  // on a device on which no casts are cached

struct Entry {
  PyObject* weight = nullptr;  // borrowed
  Owned reference;             // a weak reference to the weight, whose callback drops the entry
  Owned cast;                  // null if no cast is cached at the moment
  const char* cast_storage = nullptr;
  Owned holder;  // holds the cast in C++ as well (host::make_holder), or null
  Kind to = Kind::bf16;
  Snapshot snapshot;           // of the weight, before the cast was made
  std::uint32_t doubts = 1;    // how often code may have changed the weight without its version
  std::uint32_t settled = 0;   // the doubts before the cast was made
  std::uint32_t attempts = 0;  // how often a thread has begun to make the cast
  bool is_lent = false;        // NumPy or DLPack may have its memory, until the weight owns it alone again
  std::vector<Owned> aliases;  // weak references to tensors that have its memory and a version counter of their own
  Refusal refusal{};           // the reason for the last refusal
  host::Geometry geometry;     // of the weight at that time; without values: unknown
  Owned size;                  // the weight's sizes as a tuple
  int device = on_cpu;         // the number of the weight's accelerator
  std::int64_t stream = 0;     // the accelerator's stream on which the cast was made
  std::vector<std::int64_t> joined;  // other streams that have waited for this one since
  std::int64_t elements = 0;
  std::array<const std::uint32_t*, sample_count> sampled{};
  Samples samples{};

  Entry() = default;
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;
  ~Entry();

  [[nodiscard]] std::uint64_t bytes() const { return tensor::bytes_as(to, elements); }
  // Replaces the cast. Releases the former one last, since that may run other code.
  void hold(Owned made, Owned its_holder);
  void drop() { hold(nullptr, nullptr); }
  // True if the next operation on the weight's device may read the cast: the device's current stream has made it, or
  // has waited for the stream that has.
  [[nodiscard]] bool is_ready_here() const {
    if (device == on_cpu) [[likely]]
      return true;
    const std::optional<std::int64_t> here = host::current_stream(device);
    return here == stream || std::find(joined.begin(), joined.end(), here) != joined.end();
  }

  [[nodiscard]] Samples look() const {
    Samples seen{};
    for (std::size_t i = 0; i < sample_count; ++i) std::memcpy(&seen[i], sampled[i], sizeof seen[i]);
    return seen;
  }
};

struct Key {
  PyObject* weight;
  Kind to;
  bool operator==(const Key&) const = default;
};
struct HashOfKey {
  std::size_t operator()(const Key& key) const noexcept {
    // Objects of one type are at regular distances from each other, so the hash includes higher bits of the address.
    const auto address = reinterpret_cast<std::uintptr_t>(key.weight);
    return (address >> 4U) ^ (address >> 13U) ^ static_cast<std::size_t>(key.to);
  }
};

// The last look-up of a weight with this hash.
struct Recent {
  PyObject* weight = nullptr;
  Kind to = Kind::bf16;
  Entry* entry = nullptr;
};

struct Cache {
  static constexpr std::size_t recent_size = 512;
  std::array<Recent, recent_size> recent{};
  std::unordered_map<Key, std::shared_ptr<Entry>, HashOfKey> entries;
  // The entries by the storages in their snapshots.
  std::unordered_multimap<const char*, Entry*> by_storage;
  // The storages of the cached casts.
  std::unordered_set<const char*> casts;
};

// Returns the only cache. It is never destroyed: weights may outlive the interpreter's modules.
Cache& cache();

inline Recent& recent_for(PyObject* weight, Kind to) {
  return cache().recent[HashOfKey{}({weight, to}) % Cache::recent_size];
}

inline Entry* entry_of(PyObject* weight, Kind to) {
  Recent& recent = recent_for(weight, to);
  if (recent.weight == weight && recent.to == to) return recent.entry;
  const auto found = cache().entries.find({weight, to});
  if (found == cache().entries.end()) return nullptr;
  recent = {weight, to, found->second.get()};
  return recent.entry;
}

// True if the entry's cast, if it has one, is valid: the weight has the same memory, version and samples.
inline bool is_unchanged(const Entry& entry, PyObject* weight) {
  const Snapshot now = host::snapshot_of(weight);
  return entry.doubts == entry.settled && now.same_memory(entry.snapshot) && now.version == entry.snapshot.version &&
         !now.has_uncounted_owner(host::inside.by_object) && entry.look() == entry.samples;
}

}  // namespace habana_mp::weights

// The entries of the cache, one for each weight and precision. Only for src/weights and src/accel/packed.
#pragma once

#include <array>
#include <cstring>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "host/inside.hpp"
#include "kernels/cast.hpp"
#include "tensor/cast.hpp"
#include "weights/cache.hpp"

namespace habana_mp::weights {

using host::Snapshot;

extern Statistics counts;

// This many of a weight's values are compared at each use. The comparison notices writes of C code through a pointer,
// which torch does not notice: such code usually writes the whole weight.
constexpr std::size_t sample_count = 8;
using Samples = std::array<std::uint32_t, sample_count>;

enum class Validity : std::uint8_t {
  by_version,  // every write to the weight changes its version
  outdated,    // the same, but the cast must be made again whatever the version is
  exposed,     // code may have got access to its memory: its owners are counted before the cast is used again
};

enum class Layout : std::uint8_t {
  plain,        // a tensor with the weight's sizes and strides
  library,      // in the layout of torch's CPU library, for calls that autograd does not track
  panels,       // in the layout of our own kernels, also for such calls
  inner_first,  // the same, for a weight that is [inner][outer], the transpose of a linear layer's
};

// A flag that stores which thread set it. A forked child has only the thread that forked, so flags of other threads
// would never be cleared there.
class Busy {
 public:
  void begin() noexcept { thread_ = here(); }
  void end() noexcept { thread_ = nullptr; }
  explicit operator bool() const noexcept { return thread_ != nullptr; }
  [[nodiscard]] bool is_of_another_thread() const noexcept { return thread_ != nullptr && thread_ != here(); }

 private:
  // Identifies the thread by the address of a thread-local variable, which stays the same after a fork.
  static const void* here() noexcept {
    static thread_local const char place = 0;
    return &place;
  }
  const void* thread_ = nullptr;
};

struct Entry {
  PyObject* weight = nullptr;  // borrowed
  Owned reference;             // a weak reference to the weight, whose callback drops the entry
  Owned cast;                  // null if no cast is cached at the moment
  Snapshot cast_snapshot;      // of a plain cast after the core's last write: graphs expose it as a saved tensor
  Owned holder;                // holds the cast in C++ as well (host::make_holder), or null
  Layout layout = Layout::plain;
  Kind to = Kind::bf16;
  Validity validity = Validity::exposed;
  Busy busy;                       // being written, by a thread that may have released the GIL
  bool is_used = false;            // true if used since it was last made again after an optimizer's step
  bool is_fresh = false;           // an optimizer wrote the cast together with the weight
  std::uint32_t written_from = 0;  // the weight's version before that write
  bool last_use_was_part = false;  // the last use was of a view of a part of the weight
  std::int64_t elements_cast_separately =
      0;                             // values of such parts that were cast separately, before the whole weight is cast
  std::uint32_t views_in_doubt = 0;  // views in a row that could not be shown to be the only one
  std::uint32_t refusals = 0;        // the number of refusals in a row
  Refusal refusal{};                 // the reason for the last refusal
  std::uint32_t untracked_uses = 0;  // uses in a row that autograd did not track
  std::uint32_t uses_without_pack = 0;  // such uses for which the packed form was of no use
  Snapshot snapshot;                    // of the weight, before the cast was made
  std::uint32_t probed = 0;  // convolutions with reordered images that were tried, and failed trials of panels
  Owned packed_for;          // the options of the convolution that the library's packed form is for
  host::Geometry geometry;   // of the weight at that time; without values: unknown
  Owned size;                // the weight's sizes as a tuple
  std::int64_t elements = 0;
  std::array<const std::uint32_t*, sample_count> sampled{};
  Samples samples{};

  Entry() = default;
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;
  ~Entry() { drop(); }

  [[nodiscard]] std::uint64_t bytes() const { return tensor::bytes_as(to, elements); }
  // Replaces the cast. Releases the former one last, since that may run other code. Throws std::bad_alloc, with nothing
  // changed, if memory runs out.
  void hold(Owned made, Owned its_holder, Layout its_layout = Layout::plain, Owned options = nullptr);
  void drop() { hold(nullptr, nullptr); }
  [[nodiscard]] bool has(Layout wanted) const {
    return cast && layout == wanted && (layout != Layout::plain || is_intact());
  }
  // True if a plain cast is still in the same memory and has the version that the core's last write left.
  [[nodiscard]] bool is_intact() const {
    const Snapshot now = host::snapshot_of(cast.get());
    return now.same_memory(cast_snapshot) && now.version == cast_snapshot.version &&
           host::count_elements(cast.get()) == elements;
  }
  // True if the cast may be overwritten: no other owner, such as a graph that waits for its backward or another thread,
  // works with its former values.
  [[nodiscard]] bool is_free() const { return host::is_held_once(cast.get(), static_cast<bool>(holder)); }

  [[nodiscard]] Samples look() const {
    Samples seen{};
    for (std::size_t i = 0; i < sample_count; ++i) std::memcpy(&seen[i], sampled[i], sizeof seen[i]);
    return seen;
  }
};

// Marks the entry as busy in a scope that changes it while other code may run.
class BusyScope {
 public:
  explicit BusyScope(Entry& entry) noexcept : entry_(entry) { entry_.busy.begin(); }
  ~BusyScope() { entry_.busy.end(); }
  BusyScope(const BusyScope&) = delete;
  BusyScope& operator=(const BusyScope&) = delete;

 private:
  Entry& entry_;
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
  // The weight in each storage, for weights that have been trusted.
  std::unordered_map<const char*, PyObject*> weights;
  // The storages of the cached plain casts.
  std::unordered_set<const char*> casts;
  // Storages to which code took a pointer, each with the address of its memory at that time. If a storage has other
  // memory now, it is a new storage, or the pointer is no longer valid. `too_many_pointers` is true if there were too
  // many to store.
  std::unordered_map<const char*, const char*> pointed_to;
  std::unordered_map<const char*, const char*> pointed_into;  // a pointer to a slice of them was taken
  bool too_many_pointers = false;
  // Storages whose memory NumPy had only in arrays that were dropped by the code that made them, each with its address.
  std::unordered_map<const char*, const char*> lent;
  // The number of times that code may have got access to a tensor's memory.
  std::uint64_t escapes = 0;
};

// Returns the only cache. It is never destroyed: weights may outlive the interpreter's modules.
Cache& cache();

inline void Entry::hold(Owned made, Owned its_holder, Layout its_layout, Owned options) {
  const Snapshot made_snapshot = made && its_layout == Layout::plain ? host::snapshot_of(made.get()) : Snapshot{};
  if (made_snapshot.storage != nullptr) cache().casts.insert(made_snapshot.storage);
  // Nothing below can fail.
  untracked_uses = 0;
  if (cast) {
    counts.bytes -= bytes();
    --counts.weights;
    if (layout != Layout::plain) --counts.packed;
  }
  const Owned former_options = std::exchange(packed_for, std::move(options));
  const Owned former_cast = std::exchange(cast, std::move(made));
  const Owned former_holder = std::exchange(holder, std::move(its_holder));
  layout = its_layout;
  if (cast_snapshot.storage != nullptr && cast_snapshot.storage != made_snapshot.storage) {
    cache().casts.erase(cast_snapshot.storage);
  }
  cast_snapshot = made_snapshot;
  if (cast) {
    counts.bytes += bytes();
    ++counts.weights;
    if (layout != Layout::plain) ++counts.packed;
  }
}

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

// True if the weight holds the values from which its cast was made.
inline bool is_unchanged(const Entry& entry, const Snapshot& now) {
  return entry.validity == Validity::by_version && !entry.busy && now == entry.snapshot &&
         entry.look() == entry.samples;
}
inline bool is_unchanged(const Entry& entry, PyObject* weight) {
  return is_unchanged(entry, host::snapshot_of(weight));
}

// Returns the weight's snapshot. Its number of owners excludes `views`, the number of views that the caller knows.
inline Snapshot snapshot_without_views(PyObject* weight, std::uint32_t views) {
  Snapshot snapshot = host::snapshot_of(weight);
  snapshot.owners -= views;
  return snapshot;
}

}  // namespace habana_mp::weights

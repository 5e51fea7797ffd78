// One kept cast, and all of them. For this room only.
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

// So many of a weight's values are compared at each use: whoever writes a weight without telling torch, C code with a
// pointer, writes all of it.
constexpr std::size_t sample_count = 8;
using Samples = std::array<std::uint32_t, sample_count>;

enum class Trust : std::uint8_t {
  sure,     // nobody can write to the weight without its version telling
  changed,  // so too, but its values are to be cast again whatever the version says
  exposed,  // somebody may have got hold of its memory: its owners are counted before it is trusted again
};

enum class Form : std::uint8_t {
  plain,        // a tensor like the weight
  library,      // in the layout of torch's CPU library, where nothing is recorded
  panels,       // in that of our own kernels, where nothing is recorded either
  inner_first,  // the same, of a weight whose columns are what a linear layer has for rows
};

// A mark of the thread that has set it: a forked child has none of the other threads, which would never take it away.
class Busy {
 public:
  void begin() noexcept { thread_ = here(); }
  void end() noexcept { thread_ = nullptr; }
  explicit operator bool() const noexcept { return thread_ != nullptr; }
  [[nodiscard]] bool is_of_another_thread() const noexcept { return thread_ != nullptr && thread_ != here(); }

 private:
  // An address of its own for each thread, which a fork keeps.
  static const void* here() noexcept {
    static thread_local const char place = 0;
    return &place;
  }
  const void* thread_ = nullptr;
};

struct Entry {
  PyObject* weight = nullptr;  // not held
  Owned reference;             // a weak one, whose callback drops the entry
  Owned cast;                  // null where nothing is kept at the moment
  Snapshot cast_snapshot;      // of a plain cast, as we left it: a graph gives it to whoever asks what it saved
  Owned holder;                // holds the cast besides, or null
  Form form = Form::plain;
  Kind to = Kind::bf16;
  Trust trust = Trust::exposed;
  Busy busy;                         // being written, by a thread that may have let go of the GIL
  bool is_used = false;              // since it was last made again ahead of its next use
  bool is_fresh = false;             // an optimizer wrote the cast along with the weight
  std::uint32_t written_from = 0;    // the weight's version before it did
  bool in_parts = false;             // only views of a part of the weight were used of late
  std::int64_t cast_apart = 0;       // how many values of parts were cast by themselves, before the whole is
  std::uint32_t views_in_doubt = 0;  // in a row: views that were not known to be the only ones
  std::uint32_t refusals = 0;        // in a row
  Refusal refusal{};                 // why the last one
  std::uint32_t quiet_uses = 0;      // in a row: hits where nothing was recorded
  std::uint32_t unpacked = 0;        // how often a packed form could not serve, where nothing was recorded either
  Snapshot snapshot;                 // as it was before the cast was made
  std::uint32_t probed = 0;          // kinds of calls for which a form with another order was tried, to no end perhaps
  Owned packed_for;                  // the options of the convolution that a packed form is for
  host::Geometry geometry;           // as the weight lay then; without values: unknown
  Owned size;                        // the weight's sizes, a tuple
  std::int64_t elements = 0;
  std::array<const std::uint32_t*, sample_count> sampled{};
  Samples samples{};

  Entry() = default;
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;
  ~Entry() { drop(); }

  [[nodiscard]] std::uint64_t bytes() const { return tensor::bytes_as(to, elements); }
  // What was held goes last: others may run then. Throws std::bad_alloc where there is no memory to note a plain cast,
  // and nothing has changed.
  void hold(Owned made, Owned its_holder, Form its_form = Form::plain, Owned options = nullptr);
  void drop() { hold(nullptr, nullptr); }
  [[nodiscard]] bool has(Form wanted) const { return cast && form == wanted && (form != Form::plain || is_intact()); }
  // Does a plain cast lie where it lay, and was it written by nobody else, as far as its version tells?
  [[nodiscard]] bool is_intact() const {
    const Snapshot now = host::snapshot_of(cast.get());
    return now.same_memory(cast_snapshot) && now.version == cast_snapshot.version &&
           host::count_elements(cast.get()) == elements;
  }
  // May the cast be written? Not where others work with its former values: a graph that waits for its backward,
  // another thread.
  [[nodiscard]] bool is_free() const { return host::is_held_once(cast.get(), static_cast<bool>(holder)); }

  [[nodiscard]] Samples look() const {
    Samples seen{};
    for (std::size_t i = 0; i < sample_count; ++i) std::memcpy(&seen[i], sampled[i], sizeof seen[i]);
    return seen;
  }
};

// The entry is being changed while others may run, to the end of this scope.
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
    // Objects of one kind lie at equal distances from each other: higher digits take part.
    const auto address = reinterpret_cast<std::uintptr_t>(key.weight);
    return (address >> 4U) ^ (address >> 13U) ^ static_cast<std::size_t>(key.to);
  }
};

// The look-up that was made last for a weight like this one.
struct Recent {
  PyObject* weight = nullptr;
  Kind to = Kind::bf16;
  Entry* entry = nullptr;
};

struct Cache {
  static constexpr std::size_t recent_size = 512;
  std::array<Recent, recent_size> recent{};
  std::unordered_map<Key, std::shared_ptr<Entry>, HashOfKey> entries;
  // Which weight lies in a storage; for those that are trusted.
  std::unordered_map<const char*, PyObject*> weights;
  // Those of the plain casts that are kept.
  std::unordered_set<const char*> casts;
  // Storages to which somebody took a pointer, with where their memory began, and whether there were too many to
  // remember. One with other memory is another storage, or the pointer is of no use any more.
  std::unordered_map<const char*, const char*> pointed_to;
  std::unordered_map<const char*, const char*> pointed_into;  // a slice of them was pointed to
  bool too_many_pointers = false;
  // Storages of which NumPy never had more than arrays that their makers drop, likewise.
  std::unordered_map<const char*, const char*> lent;
  // How often somebody got hold of a tensor's memory.
  std::uint64_t escapes = 0;
};

// There is one, and it is never destroyed: weights may outlive the interpreter's modules.
Cache& cache();

inline void Entry::hold(Owned made, Owned its_holder, Form its_form, Owned options) {
  const Snapshot made_snapshot = made && its_form == Form::plain ? host::snapshot_of(made.get()) : Snapshot{};
  if (made_snapshot.storage != nullptr) cache().casts.insert(made_snapshot.storage);
  // From here on nothing can fail.
  quiet_uses = 0;
  if (cast) {
    counts.bytes -= bytes();
    --counts.weights;
    if (form != Form::plain) --counts.packed;
  }
  const Owned former_options = std::exchange(packed_for, std::move(options));
  const Owned former_cast = std::exchange(cast, std::move(made));
  const Owned former_holder = std::exchange(holder, std::move(its_holder));
  form = its_form;
  if (cast_snapshot.storage != nullptr && cast_snapshot.storage != made_snapshot.storage) {
    cache().casts.erase(cast_snapshot.storage);
  }
  cast_snapshot = made_snapshot;
  if (cast) {
    counts.bytes += bytes();
    ++counts.weights;
    if (form != Form::plain) ++counts.packed;
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

// Does the weight hold what it held when its cast was made?
inline bool is_unchanged(const Entry& entry, const Snapshot& now) {
  return entry.trust == Trust::sure && !entry.busy && now == entry.snapshot && entry.look() == entry.samples;
}
inline bool is_unchanged(const Entry& entry, PyObject* weight) {
  return is_unchanged(entry, host::snapshot_of(weight));
}

// What identifies the weight's values, `views` of which are known.
inline Snapshot snapshot_beside(PyObject* weight, std::uint32_t views) {
  Snapshot snapshot = host::snapshot_of(weight);
  snapshot.owners -= views;
  return snapshot;
}

}  // namespace habana_mp::weights

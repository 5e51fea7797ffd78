#include "weights/cache.hpp"

#include <chrono>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "forks.hpp"
#include "from_c.hpp"
#include "gil.hpp"
#include "host/aten.hpp"
#include "host/tensors.hpp"
#include "weights/entry.hpp"
#include "weights/memory_limit.hpp"

namespace habana_mp::weights {

NeverDestroyed<Settings> settings;
Statistics counts;
MemoryLimit memory_limit;
std::uint32_t uncounted_writers = 0;

// Made when the module is loaded: a forked child repairs it (see forks.hpp).
static NeverDestroyed<Cache> the_cache;
Cache& cache() { return *the_cache; }

// The part of `uncounted_writers` that this thread counts.
static thread_local std::uint32_t uncounted_writers_here = 0;

UncountedWrites::UncountedWrites() noexcept {
  ++uncounted_writers;
  ++uncounted_writers_here;
}
UncountedWrites::~UncountedWrites() {
  --uncounted_writers;
  --uncounted_writers_here;
}

bool may_be_cached() noexcept { return settings->on && !host::is_traced(); }

namespace {

constexpr Kind precisions[] = {Kind::bf16, Kind::f16};

// Removes the entry's storage from the table of storages, if this weight is registered there. Also discards what is
// cached about files.
void unregister_storage(const Entry& entry) {
  host::forget_files();
  const auto place = cache().weights.find(entry.snapshot.storage);
  if (place != cache().weights.end() && place->second == entry.weight) cache().weights.erase(place);
}

// Drops the entries of the weight at this address. The weight itself may be gone.
void forget_address(PyObject* weight) {
  std::shared_ptr<Entry> dropped[2];  // released last, since that may run other code
  for (std::size_t i = 0; i < 2; ++i) {
    const auto found = cache().entries.find({weight, precisions[i]});
    if (found == cache().entries.end()) continue;
    dropped[i] = std::move(found->second);
    cache().entries.erase(found);
    recent_for(weight, precisions[i]) = {};
    unregister_storage(*dropped[i]);
  }
}

// The callback of a weak reference to a weight.
PyObject* weight_died(PyObject* address, PyObject*) {
  forget_address(static_cast<PyObject*>(PyLong_AsVoidPtr(address)));
  Py_RETURN_NONE;
}

PyMethodDef weight_died_definition{"weight_died", from_c<weight_died>.pointer(), METH_O, nullptr};

// Returns a weak reference that drops the weight's entries when the weight dies. Null with an exception set when memory
// runs out.
Owned weak_reference_to(PyObject* weight) {
  const Owned address(PyLong_FromVoidPtr(weight));
  const Owned callback(address ? PyCFunction_New(&weight_died_definition, address.get()) : nullptr);
  return Owned(callback ? PyWeakref_NewRef(weight, callback.get()) : nullptr);
}

// Marks the weight's casts as exposed: its owners are counted before they are trusted again.
void distrust(PyObject* weight) {
  for (const Kind to : precisions) {
    if (Entry* entry = entry_of(weight, to)) entry->validity = Validity::exposed;
  }
}

// Returns the weight's cast, as torch makes it, if it has the weight's layout: then it can be made again in place.
// Returns null, with no exception set, if it does not.
Owned make_cast(const Entry& entry, PyObject* weight) {
  const host::OutsideOfInferenceMode guard;
  Owned plain = host::detach(weight);
  tensor::CastResult ignored;
  Owned made = plain ? tensor::cast(plain.get(), Kind::f32, entry.to, ignored) : nullptr;
  plain.reset();
  if (made && (!host::is_plain_tensor(made.get()) || host::snapshot_of(made.get()).counter == nullptr ||
               !host::has_geometry(made.get(), entry.geometry, false))) {
    made.reset();
  }
  clear_error();
  return made;
}

// Sets the entry's sizes, layout and samples from the weight. Returns false if the weight has no values, or if they
// have gaps or overlap. Throws std::bad_alloc when memory runs out.
bool find_values(Entry& entry, PyObject* weight) {
  host::Geometry geometry;
  const std::int64_t elements = host::count_elements(weight);
  if (elements == 0 || !host::read_geometry(weight, geometry) || !geometry.is_dense()) return false;
  Owned size = host::as_tuple(geometry.sizes);  // may run other code
  if (!size) throw std::bad_alloc();
  if (!host::has_geometry(weight, geometry, true)) return false;
  entry.size = std::move(size);
  entry.elements = elements;
  const auto last = static_cast<std::int64_t>(sample_count - 1);
  for (std::size_t i = 0; i < sample_count; ++i) {
    const std::int64_t place = (elements - 1) / last * static_cast<std::int64_t>(i) +
                               (elements - 1) % last * static_cast<std::int64_t>(i) / last;
    entry.sampled[i] = static_cast<const std::uint32_t*>(geometry.values) + place;
  }
  entry.geometry = std::move(geometry);
  return true;
}

// Returns the memory of the entry's cast, to write to.
void* target_of(const Entry& entry) { return const_cast<char*>(host::snapshot_of(entry.cast.get()).data); }

// Makes a plain cast again in place. The caller holds the weight's memory, and the cast has no other owner. If this
// fails, the cast is made again before its next use.
void write_cast(Entry& entry, PyObject* weight) {
  const Owned cast = Owned::borrowed(entry.cast.get());
  const BusyScope busy(entry);
  try {
    tensor::convert(weight, entry.geometry.values, Kind::f32, target_of(entry), entry.to, entry.elements);
  } catch (...) {
    entry.validity = Validity::outdated;
    throw;
  }
}

void count_refresh(const Entry& entry) noexcept {
  ++counts.refreshes;
  counts.refreshed_bytes += entry.bytes();
}

// True if a weight that was refused this many times is to be tried again: after 1, 2, 4, 8 ... refusals.
bool is_time_to_try(std::uint32_t refusals) { return (refusals & (refusals - 1)) == 0; }

// True if a further cast of this size may be cached.
bool limit_allows(std::uint64_t bytes) {
  if (settings->most_bytes) return bytes <= *settings->most_bytes && counts.bytes <= *settings->most_bytes - bytes;
  return memory_limit.allows(counts.bytes, bytes);
}

// The greatest number of storages that the tables of pointers hold together, and that `Cache::lent` holds.
constexpr std::size_t most_remembered = 1 << 20;

// True if these storages include this one with the memory that it has now.
bool is_known_in(std::unordered_map<const char*, const char*>& storages, const char* storage) {
  const auto found = storages.find(storage);
  if (found == storages.end()) return false;
  if (found->second == host::memory_of(storage)) return true;
  storages.erase(found);
  return false;
}

// Remembers that code took a pointer to this storage. If memory runs out, every weight counts as pointed to from then
// on.
void remember_pointer(const char* storage) noexcept try {
  if (cache().pointed_to.size() + cache().pointed_into.size() >= most_remembered) cache().too_many_pointers = true;
  if (cache().too_many_pointers) return;
  cache().pointed_to[storage] = host::memory_of(storage);
  const char* whole = storage;
  while ((whole = host::sliced_storage(whole)) != nullptr) cache().pointed_into[whole] = host::memory_of(whole);
} catch (const std::bad_alloc&) {
  cache().too_many_pointers = true;
}

// True if code took a pointer to this storage, to a slice of it, or to a storage of which it is a slice. A pointer to
// another slice of the same storage does not count.
bool is_pointed_to(const char* storage) {
  if (cache().too_many_pointers || is_known_in(cache().pointed_into, storage)) return true;
  const char* one = storage;
  while (one != nullptr && !is_known_in(cache().pointed_to, one)) one = host::sliced_storage(one);
  return one != nullptr;
}

// Returns the reason if anything besides the weight and `views` of it holds its memory or a pointer to it.
std::optional<Refusal> find_other_owner(PyObject* weight, const char* storage, std::uint32_t views) {
  if (is_pointed_to(storage)) return Refusal::pointer;
  if (!host::is_known_memory(storage, is_known_in(cache().lent, storage))) {
    return host::is_of_torch(storage) ? Refusal::numpy : Refusal::memory;
  }
  if (!host::holds_its_memory_alone(weight, views)) return Refusal::held;
  return std::nullopt;
}

// Returns the reason if other code could change the weight without counting up its version.
std::optional<Refusal> reason_to_refuse(PyObject* weight, const Snapshot& now, std::uint32_t views) {
  if (now.storage == nullptr || now.counter == nullptr) return Refusal::version;
  if (host::is_off_cpu(weight)) return Refusal::device;
  if (const auto refusal = find_other_owner(weight, now.storage, views)) return refusal;
  const bool is_counted = host::is_no_inference_tensor(weight) && host::has_no_negative_bit(weight);
  return is_counted ? std::nullopt : std::optional(Refusal::version);
}

// True if a cast of this weight may be cached now. If not, the entry's `refusal` has the reason. Other code may run
// meanwhile.
bool may_trust(Entry& entry, PyObject* weight, const Snapshot& now, std::uint32_t views) {
  if (!now.same_owners(entry.snapshot) && entry.validity != Validity::exposed) entry.validity = Validity::exposed;
  if (!now.same_memory(entry.snapshot)) {
    unregister_storage(entry);
    entry.refusals = 0;
    entry.geometry = {};
    entry.snapshot = now;
    entry.drop();
  }
  if (entry.validity != Validity::exposed) return true;
  if (!is_time_to_try(entry.refusals)) return false;
  const std::optional<Refusal> refusal = reason_to_refuse(weight, now, views);
  if (refusal) entry.refusal = *refusal;
  return !refusal;
}

// True if the cache still holds this entry.
bool is_cached(const Entry& entry) {
  const auto found = cache().entries.find({entry.weight, entry.to});
  return found != cache().entries.end() && found->second.get() == &entry;
}

// Brings the entry's cast up to date with the weight's values. Returns false if no cast can be cached, and sets the
// entry's `refusal`.
bool bring_up_to_date(Entry& entry, PyObject* weight, std::uint32_t views) {
  const auto refuse = [&entry](Refusal why) {
    entry.validity = Validity::exposed;
    entry.refusal = why;
    ++entry.refusals;
    return false;
  };
  if (entry.busy) {
    entry.refusal = Refusal::changing;
    return false;
  }
  const Snapshot now = snapshot_without_views(weight, views);
  const bool had_cast = static_cast<bool>(entry.cast);
  const std::uint64_t escapes = cache().escapes;
  if (!may_trust(entry, weight, now, views)) {
    ++entry.refusals;
    entry.drop();
    return false;
  }
  const host::HeldMemory memory(weight);
  const bool has_same_layout = entry.geometry.values != nullptr && host::has_geometry(weight, entry.geometry, true);
  if (!has_same_layout) {
    entry.geometry = {};
    entry.drop();
    if (!find_values(entry, weight)) return refuse(Refusal::layout);
  }
  // Other code may have run up to here. None runs from here to the cast.
  const Snapshot held = snapshot_without_views(weight, views);
  if (!held.same_memory(now) || held.version != now.version || cache().escapes != escapes || entry.busy ||
      memory.storage() != held.storage || !is_cached(entry) || entry.geometry.values == nullptr) {
    entry.validity = Validity::exposed;
    entry.refusal = Refusal::changing;
    return false;
  }
  PyObject*& registered = cache().weights[held.storage];  // before any change, since it may throw std::bad_alloc
  // From now on every change of the weight makes its snapshot differ from this one, or ends its validity.
  entry.snapshot = held;
  --entry.snapshot.owners;  // `memory` is released at the end
  entry.samples = entry.look();
  entry.validity = uncounted_writers == 0 ? Validity::by_version : Validity::outdated;
  entry.untracked_uses = 0;
  // If another weight was in this storage before the contents of the two were swapped, `memory_escapes` no longer finds
  // it.
  if (registered != nullptr && registered != weight) distrust(registered);
  registered = weight;
  if (had_cast) count_refresh(entry);
  if (entry.has(Layout::plain) && entry.is_free()) {
    entry.refusals = 0;
    write_cast(entry, weight);
    return true;
  }
  Owned made;
  Owned holder;
  {
    const BusyScope busy(entry);
    entry.drop();
    if (limit_allows(entry.bytes())) made = make_cast(entry, weight);
    if (made) holder = host::make_holder(made.get());
  }
  if (made) {
    entry.refusals = 0;
    entry.hold(std::move(made), std::move(holder));
    return true;
  }
  return refuse(Refusal::limit);
}

// Adds an entry for the weight. Returns it, or the one that other code has added meanwhile. Returns null, with no
// exception set, if memory runs out.
std::shared_ptr<Entry> make_entry(PyObject* weight, Kind to) {
  Owned reference = weak_reference_to(weight);
  if (!reference) {
    clear_error();
    return nullptr;
  }
  auto entry = std::make_shared<Entry>();
  // Other code may have run while the reference was made.
  const auto [place, is_new] = cache().entries.try_emplace({weight, to}, entry);
  if (!is_new) return place->second;
  entry->weight = weight;
  entry->reference = std::move(reference);
  entry->to = to;
  entry->snapshot = host::snapshot_of(weight);
  return entry;
}

// Returns the weight's entry, which is made if needed. When memory runs out, returns null with no exception set, or
// throws std::bad_alloc.
std::shared_ptr<Entry> entry_for(PyObject* weight, Kind to) {
  const auto found = cache().entries.find({weight, to});
  return found == cache().entries.end() ? make_entry(weight, to) : found->second;
}

// Returns the cast as a part of autograd's graph: a tensor that is made from the weight without a copy, and then gets
// the cast's memory and dtype. Its gradient arrives in the cast's dtype; the graph's node has the weight's dtype and
// converts the gradient. For torch the tensor is not a view, since torch's compiled backward would read the layout of a
// view's base. Returns null if this fails; an exception is set only for an interrupt.
//
// `size` is the tuple of `sizes`, or null if the caller has none.
//
// A large cast gets a node of this package, since its gradient would need new memory, which the operating system clears
// page by page. A cast that is used often does not: with that node torch would sum the gradients in the cast's
// precision.
Owned as_part_of_graph(PyObject* weight, std::span<const std::int64_t> sizes, PyObject* size, PyObject* cast,
                       Tracking tracking) {
  constexpr std::int64_t large = std::int64_t{1} << 22;
  if (host::count_elements(weight) >= large && tracking != Tracking::often && settings->recorded) {
    const Owned function = Owned::borrowed(settings->recorded.get());
    PyObject* const arguments[] = {weight, cast};
    Owned made(PyObject_Vectorcall(function.get(), arguments, 2, nullptr));
    drop_error();
    return made;
  }
  Owned made = host::unsafe_view(weight, sizes);
  if (!made && settings->view) {
    // Other threads may run meanwhile and release what the settings hold.
    const Owned view = Owned::borrowed(settings->view.get());
    const Owned held_size = size == nullptr ? host::as_tuple(sizes) : Owned::borrowed(size);
    PyObject* const arguments[] = {weight, held_size.get()};
    if (held_size) made = Owned(PyObject_Vectorcall(view.get(), arguments, 2, nullptr));
  }
  if (made && !host::set_data(made.get(), cast)) made.reset();
  clear_error();
  return made;
}

// A weight's entry, whose cast is up to date, and the cast. Both are null if no cast can be cached; an exception is set
// only for an interrupt. If the cast had to be made, `held` keeps the entry alive, and `elements` is the number of
// elements that were cast.
struct UpToDate {
  Entry* entry = nullptr;
  Owned cast;
};
UpToDate up_to_date(PyObject* weight, Kind to, bool records, std::uint32_t views, std::shared_ptr<Entry>& held,
                    std::int64_t& elements) {
  elements = 0;
  Entry* entry = entry_of(weight, to);
  if (entry == nullptr || !entry->has(Layout::plain) || !is_unchanged(*entry, snapshot_without_views(weight, views))) {
    if (!settings->on) return {};  // switched off since the call began
    // Other code may run and drop the entry.
    held = entry_for(weight, to);
    const bool is_packed = held != nullptr && held->cast && held->layout != Layout::plain;
    if (is_packed && !records) {
      Snapshot now = snapshot_without_views(weight, views);
      now.owners = held->snapshot.owners;  // another view of it may be alive
      if (is_unchanged(*held, now)) ++held->uses_without_pack;
    }
    if (held == nullptr || !bring_up_to_date(*held, weight, views)) {
      ++counts.refused[static_cast<std::size_t>(held == nullptr ? Refusal::limit : held->refusal)];
      return {};
    }
    entry = held.get();
    elements = entry->elements;
    if (!entry->has(Layout::plain)) return {};  // dropped meanwhile
  } else {
    ++counts.hits;
  }
  entry->is_used = true;
  entry->untracked_uses = records ? 0 : entry->untracked_uses + 1;
  return {entry, Owned::borrowed(entry->cast.get())};
}

// Holds the weight of which a plain tensor is a view. It holds none if the tensor is no view of a weight, or no longer
// shares the weight's memory.
class Base {
 public:
  explicit Base(PyObject* view) : held_(host::base_of(view)) {
    clear_error();
    if (held_ && !is_weight_behind(view)) held_.reset();
  }
  [[nodiscard]] PyObject* weight() const { return held_.get(); }
  [[nodiscard]] Owned take() { return std::move(held_); }

 private:
  [[nodiscard]] bool is_weight_behind(PyObject* view) const {
    if (!host::is_parameter(weight()) || host::kind_of_tensor(weight()) != Kind::f32) return false;
    const Snapshot part = host::snapshot_of(view);
    const Snapshot whole = host::snapshot_of(weight());
    // A view shares the version counter of its base.
    return part.storage == whole.storage && part.counter != nullptr && part.counter == whole.counter;
  }

  Owned held_;
};

// True if this view is the only one. Another view does not affect the weight's own cast or its validity. Other code
// may run meanwhile.
bool is_only_view(Entry& entry, PyObject* weight) {
  const Snapshot now = snapshot_without_views(weight, 1);
  if (entry.validity != Validity::exposed && now.same_memory(entry.snapshot))
    return now.owners == entry.snapshot.owners;
  constexpr std::uint32_t longest_wait = 64;
  const bool is_alone =
      is_time_to_try(entry.views_in_doubt % longest_wait) && !find_other_owner(weight, now.storage, 1);
  entry.views_in_doubt = is_alone ? 0 : entry.views_in_doubt + 1;
  return is_alone;
}

// True if a part of a weight is to be taken from the cast of the whole weight. The whole weight is cast only after its
// parts were cast separately with as many elements as the weight has.
bool pays_off(Entry& entry, PyObject* weight, std::int64_t elements) {
  if (entry.has(Layout::plain) && is_unchanged(entry, snapshot_without_views(weight, 1))) return true;
  entry.elements_cast_separately += elements;
  if (entry.elements_cast_separately < host::count_elements(weight)) return false;
  entry.elements_cast_separately = 0;
  return true;
}

// Returns the part of a weight's cast that has this layout. Returns null if it reaches beyond the weight.
Owned part_of(const Entry& entry, PyObject* cast, const host::Geometry& part) {
  const std::int64_t begin = static_cast<const float*>(part.values) - static_cast<const float*>(entry.geometry.values);
  std::int64_t end = begin + 1;
  for (std::size_t i = 0; i < part.sizes.size(); ++i) end += (part.sizes[i] - 1) * part.strides[i];
  if (begin < 0 || end > entry.elements) return nullptr;
  return host::as_strided(cast, part, begin);
}

}  // namespace

void configure(Settings wanted) noexcept {
  wanted.on = wanted.on && host::can_look_inside();
  const Settings former = std::exchange(*settings, std::move(wanted));
  memory_limit = {};
  if (!settings->on || (settings->most_bytes && counts.bytes > *settings->most_bytes)) forget_all();
  if (settings->on) return;
  // The watches end as well, so what they noted would soon be outdated.
  cache().pointed_to.clear();
  cache().pointed_into.clear();
  cache().lent.clear();
  cache().too_many_pointers = false;
}

// Returns the result of `make`, or null if memory runs out: the user's call goes on without a cached cast.
template <typename Make>
[[gnu::always_inline]] static inline Owned null_if_out_of_memory(std::int64_t& elements, const Make& make) noexcept {
  try {
    return make();
  } catch (const std::bad_alloc&) {
    ++counts.refused[static_cast<std::size_t>(Refusal::limit)];
    elements = 0;
    return nullptr;
  }
}

static Owned find_cached(PyObject* weight, Kind to, Tracking tracking, std::int64_t& elements) {
  const bool records = tracking != Tracking::none;
  std::shared_ptr<Entry> held;
  auto [entry, cast] = up_to_date(weight, to, records, 0, held, elements);
  if (entry == nullptr) return nullptr;
  entry->last_use_was_part = false;
  if (!records || !host::requires_grad(weight)) return std::move(cast);
  return as_part_of_graph(weight, entry->geometry.sizes, entry->size.get(), cast.get(), tracking);
}

Owned cached_cast(PyObject* weight, Kind to, Tracking tracking, std::int64_t& elements) noexcept {
  return null_if_out_of_memory(elements, [&] { return find_cached(weight, to, tracking, elements); });
}

static Owned find_cached_part(PyObject* view, Kind to, Tracking tracking, std::int64_t& elements) {
  const bool records = tracking != Tracking::none;
  elements = 0;
  const Base base(view);
  if (base.weight() == nullptr || !settings->on) return nullptr;
  const bool is_recorded = records && host::requires_grad(view);
  const bool is_whole = host::count_elements(view) == host::count_elements(base.weight());
  // A separate cast of a view with gaps has no gaps, so a part of the weight's cast would have another layout.
  host::Geometry part;
  if ((is_recorded && !is_whole) || host::is_negative(view) || !host::read_geometry(view, part) || !part.is_dense()) {
    return nullptr;
  }
  std::shared_ptr<Entry> held = entry_for(base.weight(), to);
  if (held == nullptr || !is_only_view(*held, base.weight())) return nullptr;
  if (!is_whole && !pays_off(*held, base.weight(), host::count_elements(view))) return nullptr;
  auto [entry, cast] = up_to_date(base.weight(), to, records, 1, held, elements);
  if (entry == nullptr) return nullptr;
  entry->last_use_was_part = !is_whole;
  Owned made = part_of(*entry, cast.get(), part);
  cast.reset();
  if (!made || !is_recorded) return made;
  return as_part_of_graph(view, part.sizes, nullptr, made.get(), tracking);
}

Owned cached_part(PyObject* view, Kind to, Tracking tracking, std::int64_t& elements) noexcept {
  return null_if_out_of_memory(elements, [&] { return find_cached_part(view, to, tracking, elements); });
}

Owned cast_for_many(PyObject* given, Kind to) {
  host::Geometry geometry;
  if (!tensor::is_cast_in_graph(given) || !host::read_geometry(given, geometry)) return nullptr;
  const Owned plain = host::detach(given);
  tensor::CastResult ignored;
  const Owned cast = plain ? tensor::cast(plain.get(), Kind::f32, to, ignored) : nullptr;
  Owned made = cast ? as_part_of_graph(given, geometry.sizes, nullptr, cast.get(), Tracking::often) : nullptr;
  clear_error();
  return made;
}

Owned transposed_weight(PyObject* view) noexcept {
  DLTensor part;
  DLTensor whole;
  // These cheap checks exclude most tensors.
  if (!host::view_on_cpu(view, part) || part.ndim != 2 || part.strides == nullptr || part.strides[0] != 1 ||
      host::is_negative(view)) {
    return nullptr;
  }
  Base base(view);
  const bool is_it = base.weight() != nullptr && host::view_on_cpu(base.weight(), whole) && whole.ndim == 2 &&
                     host::is_contiguous(whole) && part.data == whole.data && part.byte_offset == whole.byte_offset &&
                     part.shape[0] == whole.shape[1] && part.shape[1] == whole.shape[0] &&
                     part.strides[1] == whole.shape[1];
  return is_it ? base.take() : nullptr;
}

bool holds_any_cast() noexcept { return settings->on && !cache().entries.empty(); }

void memory_escapes(const char* storage, bool unseen) noexcept {
  if (!settings->on || storage == nullptr) return;
  ++cache().escapes;
  host::forget_files();
  if (unseen) remember_pointer(storage);
  const auto found = cache().weights.find(storage);
  if (found == cache().weights.end()) return;
  distrust(found->second);
}

void all_memory_escapes() noexcept {
  if (!settings->on) return;
  ++cache().escapes;
  host::forget_files();
  for (const auto& [key, entry] : cache().entries) entry->validity = Validity::exposed;
}

void numpy_takes(const char* storage, bool lent) noexcept {
  if (!settings->on || storage == nullptr) return;
  if (!lent) {
    cache().lent.erase(storage);
    if (!host::shows_numpy_use(storage)) remember_pointer(storage);
    return;
  }
  try {
    if (host::is_known_memory(storage, false) && cache().lent.size() < most_remembered) {
      cache().lent[storage] = host::memory_of(storage);
    }
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): then its memory counts as NumPy's
  }
}

namespace {

// A cast that is made again, and the references that keep its entry and its memory alive meanwhile.
struct Renewed {
  std::shared_ptr<Entry> entry;
  Owned cast;
  host::HeldMemory memory;
};

// Marks the casts of this weight as outdated.
void mark_outdated(PyObject* weight) noexcept {
  for (const Kind to : precisions) {
    const auto found = cache().entries.find({weight, to});
    if (found != cache().entries.end() && found->second->validity == Validity::by_version)
      found->second->validity = Validity::outdated;
  }
}

// Collects the casts that are to be made again, with a job for each, and marks their entries as busy.
void find_jobs(PyObject* const* weights, Py_ssize_t count, bool may_be_fresh, std::vector<Renewed>& renewed,
               std::vector<kernels::Job>& jobs) {
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* weight = weights[i];
    for (const Kind to : precisions) {
      const auto found = cache().entries.find({weight, to});
      if (found == cache().entries.end()) continue;
      const std::shared_ptr<Entry> entry = found->second;
      const bool is_fresh = std::exchange(entry->is_fresh, false) && may_be_fresh && is_unchanged(*entry, weight);
      if (!entry->cast || entry->validity == Validity::exposed || is_fresh) continue;
      entry->validity = Validity::outdated;
      if (entry->busy || entry->layout != Layout::plain || entry->last_use_was_part) continue;
      // The last cast was not used, so a new one may not be used either.
      if (!std::exchange(entry->is_used, false)) continue;
      host::HeldMemory memory(weight);
      Snapshot now = host::snapshot_of(weight);
      --now.owners;
      if (uncounted_writers != 0 || entry->validity != Validity::outdated || entry->busy ||
          !now.same_owners(entry->snapshot) || memory.storage() != now.storage ||
          !host::has_geometry(weight, entry->geometry, true) || !entry->has(Layout::plain) || !entry->is_free()) {
        continue;
      }
      renewed.push_back({entry, Owned::borrowed(entry->cast.get()), std::move(memory)});
      entry->busy.begin();
      jobs.emplace_back(entry->geometry.values, kernels::Float::f32, target_of(*entry), tensor::float_of(to),
                        static_cast<std::size_t>(entry->elements));
      entry->snapshot = now;
      entry->samples = entry->look();
      entry->validity = Validity::by_version;
      entry->untracked_uses = 0;
    }
  }
}

}  // namespace

void renew(PyObject* const* weights, Py_ssize_t count, bool may_be_fresh) noexcept {
  if (!settings->on || cache().entries.empty()) return;
  std::vector<Renewed> renewed;
  std::vector<kernels::Job> jobs;
  try {
    find_jobs(weights, count, may_be_fresh, renewed, jobs);
  } catch (const std::bad_alloc&) {
    // Each weight is cast at its next use instead.
    for (const Renewed& one : renewed) one.entry->busy.end();
    for (Py_ssize_t i = 0; i < count; ++i) mark_outdated(weights[i]);
    return;
  }
  if (jobs.empty()) return;
  const unsigned threads = host::torch_threads();
  const auto begin = std::chrono::steady_clock::now();
  without_gil([&] { kernels::cast_many(jobs, threads); });
  const std::chrono::nanoseconds taken = std::chrono::steady_clock::now() - begin;
  for (const Renewed& one : renewed) {
    one.entry->busy.end();
    count_refresh(*one.entry);
  }
  counts.refresh_nanoseconds += static_cast<std::uint64_t>(taken.count());
}

void expect_changes(PyObject* const* weights, Py_ssize_t count) noexcept {
  if (!settings->on || cache().entries.empty()) return;
  for (Py_ssize_t i = 0; i < count; ++i) mark_outdated(weights[i]);
}

PyObject* cast_to_write(PyObject* weight) noexcept {
  if (!settings->on || uncounted_writers != 0) return nullptr;
  for (const Kind to : precisions) {
    Entry* entry = entry_of(weight, to);
    if (entry == nullptr || !entry->has(Layout::plain) || entry->busy || entry->validity == Validity::exposed ||
        entry->last_use_was_part || !entry->is_used) {
      continue;
    }
    const Snapshot now = host::snapshot_of(weight);
    const bool may_write =
        now.same_owners(entry->snapshot) && host::has_geometry(weight, entry->geometry, true) && entry->is_free();
    if (!may_write) continue;
    // A call that needs the weight before it is written finds that its cast has another owner, and makes a new one.
    entry->validity = Validity::outdated;
    entry->written_from = now.version;
    return entry->cast.get();
  }
  return nullptr;
}

void was_written(PyObject* weight, PyObject* cast) noexcept {
  for (const Kind to : precisions) {
    Entry* entry = entry_of(weight, to);
    if (entry == nullptr || entry->cast.get() != cast || entry->validity != Validity::outdated) continue;
    const Snapshot now = host::snapshot_of(weight);
    // The step increments the version once. Any other increment comes from another thread, whose write the cast may
    // lack.
    if (!now.same_owners(entry->snapshot) || now.version != entry->written_from + 1) continue;
    entry->snapshot = now;
    entry->samples = entry->look();
    entry->cast_snapshot = host::snapshot_of(cast);
    entry->validity = Validity::by_version;
    entry->is_used = false;
    entry->is_fresh = true;
    count_refresh(*entry);
  }
}

void forget(PyObject* weight) noexcept { forget_address(weight); }

void forget_all() noexcept {
  auto dropped = std::move(cache().entries);
  cache().entries.clear();
  cache().recent = {};
  cache().weights.clear();
}

// Repairs the cache in a forked child. A cast that another thread was writing is incomplete. The child does not have
// that thread, which would clear the busy flag.
static void mend_after_fork() {
  uncounted_writers = uncounted_writers_here;
  for (const auto& [key, entry] : cache().entries) {
    if (!entry->busy.is_of_another_thread()) continue;
    entry->busy.end();
    if (entry->validity == Validity::by_version) entry->validity = Validity::outdated;
  }
}
[[maybe_unused]] static const bool is_mended = forks::mend_in_child(&mend_after_fork);

bool is_cached_memory(PyObject* tensor) noexcept {
  return settings->on && host::is_plain_tensor(tensor) && cache().casts.contains(host::storage_of(tensor));
}

const char* describe(Refusal refusal) noexcept {
  static constexpr std::array words = {
      "others hold its memory",     "a pointer to it was taken",
      "NumPy had its memory",       "its memory is not torch's own",
      "nothing counts its changes", "it is not on the CPU",
      "its values have gaps",       "the limit was reached, or memory ran out",
      "it was being changed",
  };
  static_assert(words.size() == refusals);
  return words[static_cast<std::size_t>(refusal)];
}

Statistics statistics() noexcept { return counts; }

const std::array<std::uint64_t, refusals>& refusals_so_far() noexcept { return counts.refused; }

void reset_statistics() noexcept {
  counts.hits = counts.refreshes = counts.refreshed_bytes = counts.refresh_nanoseconds = 0;
  counts.refused = {};
}

}  // namespace habana_mp::weights

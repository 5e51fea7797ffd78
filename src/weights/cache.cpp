#include "weights/cache.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "from_c.hpp"
#include "host/aten.hpp"
#include "host/system_memory.hpp"
#include "host/tensors.hpp"
#include "host/view.hpp"
#include "weakrefs.hpp"
#include "weights/entry.hpp"
#include "weights/memory_limit.hpp"

namespace habana_mp::weights {

NeverDestroyed<Settings> settings;
Statistics counts;

// No static of a function: a child that is forked while that is made would wait for it for ever.
static NeverDestroyed<Cache> the_cache;
Cache& cache() { return *the_cache; }

bool may_be_cached() noexcept { return settings->on && !host::is_traced(); }

namespace {

constexpr Kind precisions[] = {Kind::bf16, Kind::f16};

// The limits of the devices by their numbers.
NeverDestroyed<std::map<int, MemoryLimit>> memory_limits;

// The graphs that are being captured.
int captures = 0;

// Makes the entry unknown by the storage in its snapshot.
void unregister_storage(const Entry& entry) noexcept {
  const auto [begin, end] = cache().by_storage.equal_range(entry.snapshot.storage);
  const auto found = std::find_if(begin, end, [&](const auto& one) { return one.second == &entry; });
  if (found != end) cache().by_storage.erase(found);
}

// Gives the entry another snapshot, and makes it known by the storage in that.
void move_to(Entry& entry, const Snapshot& snapshot) {
  cache().by_storage.emplace(snapshot.storage, &entry);
  unregister_storage(entry);
  entry.snapshot = snapshot;
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
  }
}

// The callback of a weak reference to a weight.
PyObject* weight_died(PyObject* address, PyObject*) {
  forget_address(static_cast<PyObject*>(PyLong_AsVoidPtr(address)));
  Py_RETURN_NONE;
}

PyMethodDef weight_died_definition{"weight_died", from_c<weight_died>.pointer(), METH_O, nullptr};

// Returns a weak reference that drops the weight's entries when the weight dies.
Owned weak_reference_to(PyObject* weight) {
  const Owned address(PyLong_FromVoidPtr(weight));
  const Owned callback(address ? PyCFunction_New(&weight_died_definition, address.get()) : nullptr);
  return Owned(callback ? PyWeakref_NewRef(weight, callback.get()) : nullptr);
}

// Returns the weight's cast, as torch makes it, if it has the weight's layout. Returns null, with no exception set, if
// it does not.
Owned make_cast(const Entry& entry, PyObject* weight) {
  const host::OutsideOfInferenceMode guard;
  Owned plain = host::detach(weight);
  tensor::CastResult ignored;
  Owned made = plain ? tensor::cast(plain.get(), Kind::f32, entry.to, ignored) : nullptr;
  const auto has_layout = [&] { return host::has_layout(made.get(), entry.geometry); };
  if (made && !(host::is_plain_tensor(made.get()) && has_layout())) made.reset();
  clear_error();
  return made;
}

// Sets the entry's sizes, layout and sampled places from the weight. Returns false if the weight has no values, or if
// they have gaps or overlap. Of a weight on an accelerator no values are sampled: to read them, the processor would
// have to wait.
bool find_values(Entry& entry, PyObject* weight) {
  host::Geometry geometry;
  const std::int64_t elements = host::count_elements(weight);
  if (elements == 0 || !host::read_geometry_anywhere(weight, geometry) || !geometry.is_dense()) return false;
  entry.size = host::as_tuple(geometry.sizes);
  if (!entry.size) throw std::bad_alloc();
  entry.elements = elements;
  const auto last = static_cast<std::int64_t>(sample_count - 1);
  static constexpr std::uint32_t unread = 0;
  for (std::size_t i = 0; i < sample_count; ++i) {
    const std::int64_t place = (elements - 1) / last * static_cast<std::int64_t>(i) +
                               (elements - 1) % last * static_cast<std::int64_t>(i) / last;
    entry.sampled[i] = entry.device == on_cpu ? static_cast<const std::uint32_t*>(geometry.values) + place : &unread;
  }
  entry.geometry = std::move(geometry);
  return true;
}

// Returns the number that a Python function gives for this argument, or `otherwise` if there is no function or it
// fails.
std::int64_t number_from(const Owned& function, PyObject* argument, std::int64_t otherwise) {
  const Owned kept = Owned::borrowed_or_null(function.get());
  const Owned given(kept && argument != nullptr ? PyObject_CallOneArg(kept.get(), argument) : nullptr);
  const std::int64_t number = given ? PyLong_AsLongLong(given.get()) : otherwise;
  const bool failed = PyErr_Occurred() != nullptr;
  clear_error();
  return failed ? otherwise : number;
}

// Returns how many bytes are free on an accelerator; 0 if it does not tell.
std::uint64_t free_memory_of_accelerator(int device) {
  const Owned number(PyLong_FromLong(device));
  return static_cast<std::uint64_t>(number_from(settings->free_memory, number.get(), 0));
}

// True if a further cast of this size may be cached on this device.
bool limit_allows(int device, std::uint64_t bytes) {
  if (settings->most_bytes) return bytes <= *settings->most_bytes && counts.bytes <= *settings->most_bytes - bytes;
  return (*memory_limits)[device].allows(
      bytes, [device] { return device == on_cpu ? host::free_memory() : free_memory_of_accelerator(device); });
}

// Returns the number of the accelerator on which this weight is.
int accelerator_of(PyObject* weight) {
  if (!host::can_view_on_devices()) return on_no_accelerator;
  const auto number = static_cast<int>(number_from(settings->accelerator_of, weight, on_no_accelerator));
  return number < 0 ? on_no_accelerator : number;
}

// True if something has the weight's memory and not its version counter. The number of owners alone does not show it: a
// tensor that a graph has saved may own the weight's counter and not its memory.
bool has_alias(Entry& entry, PyObject* weight) {
  std::erase_if(entry.aliases, [](const Owned& one) { return referent_of(one.get()) == nullptr; });
  return !entry.aliases.empty() || host::has_uncounted_owner(weight);
}

// Returns the reason why no cast of this weight may be cached now. Forgets aliases that are gone, and that the memory
// was lent, if the weight owns it alone again.
std::optional<Refusal> reason_to_refuse(Entry& entry, PyObject* weight, const Snapshot& now) {
  if (now.storage == nullptr || now.counter == nullptr) return Refusal::version;
  if (entry.device == on_no_accelerator) return Refusal::device;
  if (entry.device == on_cpu && !host::is_known_memory(now.storage)) return Refusal::memory;
  if (has_alias(entry, weight)) return Refusal::held;
  if (entry.is_lent && !host::holds_its_memory_alone(weight)) return Refusal::lent;
  entry.is_lent = false;
  const bool is_counted = host::is_no_inference_tensor(weight) && host::has_no_negative_bit(weight);
  return is_counted ? std::nullopt : std::optional(Refusal::version);
}

// Takes over the weight's memory, version and samples. Returns the reason if no cast of it can be cached. Other code
// may run meanwhile, and move the weight, or make its cast.
std::optional<Refusal> settle(Entry& entry, PyObject* weight, std::uint32_t attempt) {
  const Snapshot now = host::snapshot_of(weight);
  if (!now.same_memory(entry.snapshot)) {
    move_to(entry, now);
    entry.is_lent = now.storage != nullptr && host::numpy_had_memory(now.storage);
    entry.aliases.clear();
    entry.device = host::is_off_cpu(weight) ? accelerator_of(weight) : on_cpu;
  }
  if (const auto refusal = reason_to_refuse(entry, weight, now)) return refusal;
  if (!find_values(entry, weight)) return Refusal::layout;
  if (!limit_allows(entry.device, entry.bytes())) return Refusal::limit;
  const Snapshot then = host::snapshot_of(weight);
  if (!then.same_memory(now) || entry.attempts != attempt) return Refusal::changing;
  entry.snapshot = then;
  entry.samples = entry.look();
  return std::nullopt;
}

// Makes the weight's cast. Returns false, with the entry's `refusal` set, if none can be cached.
bool make_again(Entry& entry, PyObject* weight) {
  const bool is_refresh = entry.settled != 0;
  entry.drop();
  const std::uint32_t doubts = entry.doubts;
  const std::uint32_t attempt = ++entry.attempts;
  if (const auto refusal = settle(entry, weight, attempt)) {
    entry.refusal = *refusal;
    return false;
  }
  // Other threads may run while the cast is made. A change of the weight or a doubt makes it invalid, and so does
  // another thread that has begun to make it meanwhile, perhaps from newer values.
  Owned made = make_cast(entry, weight);
  if (!made || entry.attempts != attempt) {
    entry.refusal = made ? Refusal::changing : Refusal::layout;
    return false;
  }
  if (entry.device != on_cpu) {
    const std::optional<std::int64_t> stream = host::current_stream(entry.device);
    if (!stream || !host::is_memory_of_one_allocator(weight, made.get())) {
      entry.refusal = stream ? Refusal::memory : Refusal::device;
      return false;
    }
    entry.stream = *stream;
    entry.joined.clear();
  }
  entry.settled = doubts;
  Owned holder = host::make_holder(made.get());
  entry.hold(std::move(made), std::move(holder));
  if (is_refresh) {
    ++counts.refreshes;
    counts.refreshed_bytes += entry.bytes();
  }
  return true;
}

// Returns the weight's entry, which is made if needed. Null with an exception set when memory runs out.
std::shared_ptr<Entry> entry_for(PyObject* weight, Kind to) {
  const auto found = cache().entries.find({weight, to});
  if (found != cache().entries.end()) return found->second;
  Owned reference = weak_reference_to(weight);
  if (!reference) return nullptr;
  auto entry = std::make_shared<Entry>();
  // Other code may have run while the reference was made.
  const auto [place, is_new] = cache().entries.try_emplace({weight, to}, entry);
  if (!is_new) return place->second;
  entry->weight = weight;
  entry->reference = std::move(reference);
  entry->to = to;
  return entry;
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

// Makes the current stream of the weight's accelerator wait until the cast is made. Returns false, with the entry
// unchanged, if that fails, or if the entry has another cast by then.
bool wait_for_cast(Entry& entry) {
  const Owned cast = Owned::borrowed(entry.cast.get());
  const Owned function = Owned::borrowed_or_null(settings->wait_for_stream.get());
  const std::optional<std::int64_t> here = host::current_stream(entry.device);
  const Owned done(here && function ? PyObject_CallFunction(function.get(), "OL", cast.get(), entry.stream) : nullptr);
  clear_error();
  if (!done || entry.cast.get() != cast.get()) return false;
  entry.joined.push_back(*here);
  return true;
}

// A weight's entry, whose cast is valid, and the cast. Both are null if no cast can be cached; an exception is set only
// for an interrupt, or if memory runs out. If the cast had to be made, `held` keeps the entry alive.
struct Valid {
  Entry* entry = nullptr;
  Owned cast;
};
Valid valid_cast(PyObject* weight, Kind to, std::shared_ptr<Entry>& held, std::int64_t& elements) {
  elements = 0;
  if (is_capturing() && host::is_off_cpu(weight)) [[unlikely]] {
    ++counts.refused[static_cast<std::size_t>(Refusal::capture)];
    return {};
  }
  Entry* entry = entry_of(weight, to);
  bool is_valid = entry != nullptr && entry->cast && is_unchanged(*entry, weight);
  if (is_valid && !entry->is_ready_here()) [[unlikely]] {
    held = entry_for(weight, to);
    is_valid = held.get() == entry && wait_for_cast(*entry);
  }
  if (is_valid) {
    ++counts.hits;
  } else {
    if (!settings->on) return {};  // switched off since the call began
    // Other code may run and drop the entry.
    held = entry_for(weight, to);
    if (held == nullptr) return {};
    entry = held.get();
    const bool replaces = static_cast<bool>(entry->cast);
    if (!make_again(*entry, weight)) {
      ++counts.refused[static_cast<std::size_t>(entry->refusal)];
      return {};
    }
    elements = replaces ? -entry->elements : entry->elements;
  }
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

// Returns the part of a weight's cast that has this layout. Returns null if it reaches beyond the weight.
Owned part_of(const Entry& entry, PyObject* cast, const host::Geometry& part) {
  const std::int64_t begin = static_cast<const float*>(part.values) - static_cast<const float*>(entry.geometry.values);
  std::int64_t end = begin + 1;
  for (std::size_t i = 0; i < part.sizes.size(); ++i) end += (part.sizes[i] - 1) * part.strides[i];
  if (begin < 0 || end > entry.elements) return nullptr;
  return host::as_strided(cast, part, begin);
}

}  // namespace

void Entry::hold(Owned made, Owned its_holder) {
  const char* made_storage = made ? host::storage_of(made.get()) : nullptr;
  if (made_storage != nullptr) cache().casts.insert(made_storage);
  if (cast) {
    counts.bytes -= bytes();
    (*memory_limits)[device].kept -= bytes();
    --counts.weights;
  }
  const Owned former_cast = std::exchange(cast, std::move(made));
  const Owned former_holder = std::exchange(holder, std::move(its_holder));
  if (cast_storage != nullptr) cache().casts.erase(cast_storage);
  cast_storage = made_storage;
  if (cast) {
    counts.bytes += bytes();
    (*memory_limits)[device].kept += bytes();
    ++counts.weights;
  }
}

Entry::~Entry() {
  drop();
  unregister_storage(*this);
}

void configure(Settings wanted) noexcept {
  wanted.on = wanted.on && host::can_look_inside();
  const Settings former = std::exchange(*settings, std::move(wanted));
  forget_free_memory();
  if (!settings->on || (settings->most_bytes && counts.bytes > *settings->most_bytes)) forget_all();
}

Owned cached_cast(PyObject* weight, Kind to, Tracking tracking, std::int64_t& elements) {
  const bool records = tracking != Tracking::none;
  std::shared_ptr<Entry> held;
  auto [entry, cast] = valid_cast(weight, to, held, elements);
  if (entry == nullptr || !records || !host::requires_grad(weight)) return std::move(cast);
  return as_part_of_graph(weight, entry->geometry.sizes, entry->size.get(), cast.get(), tracking);
}

Owned cached_part(PyObject* view, Kind to, Tracking tracking, std::int64_t& elements) {
  const bool records = tracking != Tracking::none;
  elements = 0;
  const Base base(view);
  if (base.weight() == nullptr || !settings->on) return nullptr;
  const bool is_recorded = records && host::requires_grad(view);
  const bool is_whole = host::count_elements(view) == host::count_elements(base.weight());
  // A separate cast of a view with gaps has no gaps, so a part of the weight's cast would have another layout.
  host::Geometry part;
  if ((is_recorded && !is_whole) || host::is_negative(view) || !host::read_geometry_anywhere(view, part) ||
      !part.is_dense()) {
    return nullptr;
  }
  std::shared_ptr<Entry> held;
  auto [entry, cast] = valid_cast(base.weight(), to, held, elements);
  Owned made = entry == nullptr ? nullptr : part_of(*entry, cast.get(), part);
  if (!made || !is_recorded) return made;
  return as_part_of_graph(view, part.sizes, nullptr, made.get(), tracking);
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

bool holds_any_cast() noexcept { return settings->on && !cache().entries.empty(); }

namespace {

// Calls `change` with each entry of the weights in this storage.
template <typename Change>
void for_storage(const char* storage, const Change& change) {
  host::forget_files();
  if (storage == nullptr) return;
  const auto [begin, end] = cache().by_storage.equal_range(storage);
  for (auto one = begin; one != end; ++one) {
    ++one->second->doubts;
    change(*one->second);
  }
}

}  // namespace

void doubt(const char* storage) noexcept {
  for_storage(storage, [](Entry&) {});
}

bool is_weight_memory(PyObject* tensor) noexcept {
  return host::can_look_inside() && cache().by_storage.contains(host::storage_of(tensor));
}

void doubt_all() noexcept {
  host::forget_files();
  for (const auto& [key, entry] : cache().entries) ++entry->doubts;
}

void doubt_while_alive(const char* storage, PyObject* alias) {
  const Owned reference(PyWeakref_NewRef(alias, nullptr));  // before the entries are looked at: it may run other code
  if (!reference) throw std::bad_alloc();
  for_storage(storage, [&](Entry& entry) {
    if (entry.weight != alias) entry.aliases.push_back(Owned::borrowed(reference.get()));
  });
}

void lend(const char* storage) noexcept {
  for_storage(storage, [](Entry& entry) { entry.is_lent = true; });
}

namespace {

// Returns the entries that this function chooses: to drop a cast may run other code, which may change the cache.
template <class Chooses>
std::vector<std::shared_ptr<Entry>> entries_that(Chooses&& chooses) {
  std::vector<std::shared_ptr<Entry>> chosen;
  for (const auto& [key, entry] : cache().entries) {
    if (chooses(*entry)) chosen.push_back(entry);
  }
  return chosen;
}

}  // namespace

void drop_trained() {
  for (const auto& entry : entries_that([](const Entry& one) { return host::requires_grad(one.weight); })) {
    ++entry->doubts;  // another thread may be making its cast
    entry->drop();
  }
}

void capture_begins() noexcept { ++captures; }
void capture_ends() noexcept { captures = std::max(captures - 1, 0); }
bool is_capturing() noexcept { return captures != 0; }

bool gives_memory_back() {
  if (!host::is_out_of_memory_error()) return false;
  const auto dropped = entries_that([](const Entry& one) { return one.device >= 0 && one.cast; });
  if (dropped.empty()) return false;
  clear_error();
  for (const auto& entry : dropped) {
    (*memory_limits)[entry->device].refuse();
    entry->drop();
  }
  return true;
}

void forget_free_memory() noexcept {
  for (auto& [device, limit] : *memory_limits) limit.forget();
}

void forget(PyObject* weight) noexcept { forget_address(weight); }

void forget_all() noexcept {
  auto dropped = std::move(cache().entries);
  cache().entries.clear();
  cache().recent = {};
}

bool is_cached_memory(PyObject* tensor) noexcept {
  return settings->on && host::is_plain_tensor(tensor) && cache().casts.contains(host::storage_of(tensor));
}

const char* describe(Refusal refusal) noexcept {
  static constexpr std::array words = {
      "something has its memory but not its version counter",
      "NumPy or DLPack may have its memory",
      "its memory is not torch's own",
      "nothing counts its changes",
      "casts are not cached on its device",
      "a graph is being captured",
      "its values have gaps",
      "the limit was reached",
      "other code moved it, or made its cast, meanwhile",
  };
  static_assert(words.size() == refusals);
  return words[static_cast<std::size_t>(refusal)];
}

void reset_statistics() noexcept {
  counts.hits = counts.refreshes = counts.refreshed_bytes = counts.products = 0;
  counts.refused = {};
}

}  // namespace habana_mp::weights

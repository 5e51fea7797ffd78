#include "weights/cache.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "gil.hpp"
#include "weights/entry.hpp"

namespace habana_mp::weights {

Settings settings;
Statistics counts;

Cache& cache() {
  static auto* const the_cache = new Cache;
  return *the_cache;
}

bool may_be_kept() noexcept { return settings.on && !tensor::is_traced(); }

namespace {

// A cast above this size lets other Python threads run.
constexpr std::int64_t long_from = 1 << 16;

constexpr Kind precisions[] = {Kind::bf16, Kind::f16};

void forget_place(const Entry& entry) {
  const auto place = cache().weights.find(entry.sight.storage);
  if (place != cache().weights.end() && place->second == entry.weight) cache().weights.erase(place);
}

void forget_address(PyObject* weight) {
  std::shared_ptr<Entry> dropped[2];  // freed when nothing here is under way any more
  for (std::size_t i = 0; i < 2; ++i) {
    const auto found = cache().entries.find({weight, precisions[i]});
    if (found == cache().entries.end()) continue;
    dropped[i] = std::move(found->second);
    cache().entries.erase(found);
    recent_for(weight, precisions[i]) = {};
    forget_place(*dropped[i]);
  }
}

PyObject* weight_died(PyObject* address, PyObject*) {
  forget_address(static_cast<PyObject*>(PyLong_AsVoidPtr(address)));
  Py_RETURN_NONE;
}

PyMethodDef weight_died_definition{"weight_died", weight_died, METH_O, nullptr};

PyObject* weak_reference_to(PyObject* weight) {
  PyObject* address = PyLong_FromVoidPtr(weight);
  PyObject* callback = address == nullptr ? nullptr : PyCFunction_New(&weight_died_definition, address);
  PyObject* reference = callback == nullptr ? nullptr : PyWeakref_NewRef(weight, callback);
  Py_XDECREF(address);
  Py_XDECREF(callback);
  return reference;
}

// What is made inside of it is an ordinary tensor, in torch's inference mode too.
class OutsideOfInferenceMode {
 public:
  OutsideOfInferenceMode() {
    PyObject* on = PyObject_CallNoArgs(tensor::api.is_inference_mode);
    if (on == Py_True) {
      guard_ = PyObject_CallOneArg(tensor::api.inference_mode, Py_False);
      PyObject* done = guard_ == nullptr ? nullptr : PyObject_CallMethod(guard_, "__enter__", nullptr);
      if (done == nullptr) Py_CLEAR(guard_);
      Py_XDECREF(done);
    }
    Py_XDECREF(on);
  }
  ~OutsideOfInferenceMode() {
    if (guard_ == nullptr) return;
    PyObject* done = PyObject_CallMethod(guard_, "__exit__", "OOO", Py_None, Py_None, Py_None);
    Py_XDECREF(done);
    Py_DECREF(guard_);
  }
  OutsideOfInferenceMode(const OutsideOfInferenceMode&) = delete;
  OutsideOfInferenceMode& operator=(const OutsideOfInferenceMode&) = delete;

 private:
  PyObject* guard_ = nullptr;
};

// Does a method without arguments answer this?
bool answers(PyObject* tensor, const char* method, PyObject* expected) {
  PyObject* answer = PyObject_CallMethod(tensor, method, nullptr);
  const bool is_it = answer != nullptr && PyObject_RichCompareBool(answer, expected, Py_EQ) == 1;
  Py_XDECREF(answer);
  PyErr_Clear();
  return is_it;
}

// (sizes, strides, offset), a new reference; null where there is no such thing.
PyObject* shape_of(PyObject* tensor) {
  PyObject* shape = PyTuple_New(3);
  const char* const methods[] = {"size", "stride", "storage_offset"};
  for (Py_ssize_t i = 0; shape != nullptr && i < 3; ++i) {
    PyObject* part = PyObject_CallMethod(tensor, methods[i], nullptr);
    if (part == nullptr) {
      Py_CLEAR(shape);
    } else {
      PyTuple_SET_ITEM(shape, i, part);
    }
  }
  PyErr_Clear();
  return shape;
}

bool are_equal(PyObject* one, PyObject* other) {
  const bool equal = one != nullptr && other != nullptr && PyObject_RichCompareBool(one, other, Py_EQ) == 1;
  PyErr_Clear();
  return equal;
}

// Do a tensor's elements follow each other as this shape says? A dimension of one element may have any stride.
bool lies_as(PyObject* tensor, PyObject* shape) {
  PyObject* own = shape_of(tensor);
  bool does = own != nullptr && are_equal(PyTuple_GET_ITEM(own, 0), PyTuple_GET_ITEM(shape, 0));
  const Py_ssize_t dimensions = does ? PyTuple_GET_SIZE(PyTuple_GET_ITEM(shape, 0)) : 0;
  for (Py_ssize_t i = 0; i < dimensions && does; ++i) {
    const auto part = [i](PyObject* of, Py_ssize_t which) { return PyTuple_GET_ITEM(PyTuple_GET_ITEM(of, which), i); };
    does = PyLong_AsLongLong(part(shape, 0)) == 1 || are_equal(part(own, 1), part(shape, 1));
  }
  Py_XDECREF(own);
  PyErr_Clear();
  return does;
}

// Does the weight lie in its memory as it did? Some operations change that and nothing else (`t_`, an assigned
// `.data`).
bool has_its_shape(const Entry& entry, PyObject* weight) {
  PyObject* shape = shape_of(weight);
  const bool has = are_equal(shape, entry.shape);
  Py_XDECREF(shape);
  return has;
}

// The cast as torch makes it, where it lies in memory as the weight does: then it can be made again in place. Null
// where not.
PyObject* make_cast(const Entry& entry, PyObject* weight) {
  const OutsideOfInferenceMode guard;
  PyObject* plain = tensor::api.detach(weight, nullptr);
  tensor::CastResult ignored;
  PyObject* made = plain == nullptr ? nullptr : tensor::cast(plain, Kind::f32, entry.to, ignored);
  Py_XDECREF(plain);
  if (made != nullptr && (tensor::look_at(made).counter == nullptr || !lies_as(made, entry.shape))) {
    Py_CLEAR(made);
  }
  PyErr_Clear();
  return made;
}

// Where the weight's values lie. False where it has none here.
bool find_values(Entry& entry, PyObject* weight, const Sight& now) {
  Py_XSETREF(entry.shape, shape_of(weight));
  const long long first = entry.shape == nullptr ? -1 : PyLong_AsLongLong(PyTuple_GET_ITEM(entry.shape, 2));
  PyErr_Clear();
  const std::int64_t elements = tensor::count_elements(weight);
  if (first < 0 || elements == 0 || now.data == nullptr || tensor::is_off_cpu(weight)) {
    Py_CLEAR(entry.shape);
    return false;
  }
  entry.values = reinterpret_cast<const float*>(now.data) + first;
  entry.elements = elements;
  const auto last = static_cast<std::int64_t>(sample_count - 1);
  for (std::size_t i = 0; i < sample_count; ++i) {
    const std::int64_t place = (elements - 1) / last * static_cast<std::int64_t>(i) +
                               (elements - 1) % last * static_cast<std::int64_t>(i) / last;
    entry.places[i] = reinterpret_cast<const std::uint32_t*>(entry.values + place);
  }
  return true;
}

// The weight and its memory stay while others run, whatever they do to it.
PyObject* hold_memory(PyObject* weight) {
  PyObject* alias = tensor::api.detach(weight, nullptr);
  PyErr_Clear();
  return alias;
}

void write_cast(Entry& entry, PyObject* weight) {
  const auto* source = entry.values;
  auto* target = const_cast<char*>(tensor::look_at(entry.cast).data);
  const auto count = static_cast<std::size_t>(entry.elements);
  const kernels::Float to = tensor::float_of(entry.to);
  if (entry.elements < long_from) {
    kernels::cast(source, kernels::Float::f32, target, to, count, 1);
    return;
  }
  const unsigned threads = tensor::torch_threads();
  PyObject* cast = Py_NewRef(entry.cast);
  entry.busy = true;
  PyObject* memory = hold_memory(weight);
  without_gil([&] { kernels::cast(source, kernels::Float::f32, target, to, count, threads); });
  entry.busy = false;
  Py_XDECREF(memory);
  Py_DECREF(cast);
}

// Is this the time to look again at a weight of which nothing could be kept? Less and less often.
bool is_time_to_try(std::uint32_t refusals) { return (refusals & (refusals - 1)) == 0; }

bool limit_allows(std::uint64_t bytes) {
  return bytes <= settings.most_bytes && counts.bytes <= settings.most_bytes - bytes;
}

// May a cast of this weight be kept, as things are?
bool earn_trust(Entry& entry, PyObject* weight, const Sight& now) {
  const bool moved = !now.same_place(entry.sight);
  if (!moved && entry.trust == Trust::never) return false;
  if (!moved && entry.trust != Trust::open) {
    if (has_its_shape(entry, weight)) return true;
    entry.drop();
    return find_values(entry, weight, now);
  }
  if (moved) {
    forget_place(entry);
    entry.drop();
    entry.refusals = 0;
    entry.trust = Trust::open;
    entry.sight = now;
    Py_CLEAR(entry.shape);  // which stands for the places of the values too
  }
  if (now.counter == nullptr || !is_time_to_try(entry.refusals) || !tensor::owns_its_memory(weight) ||
      !answers(weight, "is_inference", Py_False) || !answers(weight, "is_neg", Py_False)) {
    return false;
  }
  if (has_its_shape(entry, weight)) return true;
  entry.drop();
  return find_values(entry, weight, now);
}

// Brings an entry to the weight's values of now. False where nothing of it can be kept.
bool bring_up_to_date(Entry& entry, PyObject* weight, const Sight& now) {
  if (entry.busy) return false;
  const bool had_cast = entry.cast != nullptr;
  if (!earn_trust(entry, weight, now)) {
    ++entry.refusals;
    entry.drop();
    return false;
  }
  if (tensor::look_at(weight) != now || entry.busy) return false;  // others ran meanwhile
  // From here on whatever happens to the weight makes the sight another one, or takes the trust away.
  entry.sight = now;
  entry.samples = entry.look();
  entry.trust = Trust::sure;
  entry.refusals = 0;
  cache().weights[now.storage] = weight;
  if (had_cast) ++counts.refreshes;
  // Others may still work with the former values: a graph that waits for its backward, another thread.
  if (entry.has(Form::plain) && tensor::is_held_once(entry.cast)) {
    entry.quiet_uses = 0;
    write_cast(entry, weight);
    return true;
  }
  entry.drop();
  if (limit_allows(entry.bytes())) {
    entry.busy = true;
    PyObject* made = make_cast(entry, weight);
    entry.busy = false;
    if (made != nullptr) {
      entry.hold(made);
      return true;
    }
  }
  entry.trust = Trust::open;
  ++entry.refusals;
  return false;
}

std::shared_ptr<Entry> make_entry(PyObject* weight, Kind to) {
  PyObject* reference = weak_reference_to(weight);
  if (reference == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  // Making it may have let others run.
  std::shared_ptr<Entry>& place = cache().entries[{weight, to}];
  if (place != nullptr) {
    const std::shared_ptr<Entry> known = place;
    Py_DECREF(reference);
    return known;
  }
  auto entry = std::make_shared<Entry>();
  entry->weight = weight;
  entry->reference = reference;
  entry->to = to;
  entry->sight = tensor::look_at(weight);
  const auto& pointed_to = cache().pointed_to;
  const bool is_pointed_to = std::find(pointed_to.begin(), pointed_to.end(), entry->sight.storage) != pointed_to.end();
  if (is_pointed_to) entry->trust = Trust::never;
  place = entry;
  return entry;
}

// The cast as a part of autograd's graph: made of the weight without a copy, and given the cast's memory and dtype. Its
// gradient comes in the cast's dtype, the graph's node knows the weight's and converts. It is no view to torch, whose
// compiled backward would ask the weight how it lies in memory.
PyObject* as_part_of_graph(PyObject* weight, PyObject* size, PyObject* cast) {
  PyObject* const arguments[] = {weight, size};
  PyObject* made = PyObject_Vectorcall(settings.view, arguments, 2, nullptr);
  if (made != nullptr && tensor::api.set_data(made, cast, tensor::api.data->closure) != 0) Py_CLEAR(made);
  PyErr_Clear();
  return made;
}

}  // namespace

void configure(const Settings& wanted) noexcept {
  Py_XINCREF(wanted.view);
  PyObject* const former = settings.view;
  settings = wanted;
  Py_XDECREF(former);
  settings.on = wanted.on && tensor::can_look_inside();
  if (!settings.on || counts.bytes > settings.most_bytes) forget_all();
}

PyObject* kept(PyObject* weight, Kind to, bool records, bool& is_new) noexcept {
  is_new = false;
  Entry* entry = entry_of(weight, to);
  std::shared_ptr<Entry> held;  // where others may run, and forget the entry
  if (entry == nullptr || !entry->has(Form::plain) || !is_unchanged(*entry, weight)) {
    held = entry == nullptr ? make_entry(weight, to) : cache().entries.at({weight, to});
    if (held == nullptr || !bring_up_to_date(*held, weight, tensor::look_at(weight))) {
      ++counts.refused;
      return nullptr;
    }
    is_new = true;
    entry = held.get();
    if (!entry->has(Form::plain)) return nullptr;  // taken away meanwhile
  } else {
    ++counts.hits;
  }
  PyObject* cast = Py_NewRef(entry->cast);
  entry->quiet_uses = records ? 0 : entry->quiet_uses + 1;
  if (!records || !tensor::requires_grad(weight)) return cast;
  // Other threads may run meanwhile, and take the entry away.
  PyObject* size = Py_NewRef(PyTuple_GET_ITEM(entry->shape, 0));
  PyObject* made = as_part_of_graph(weight, size, cast);
  Py_DECREF(size);
  Py_DECREF(cast);
  return made;
}

void memory_escapes(const char* storage, bool unseen) noexcept {
  if (!settings.on || storage == nullptr) return;
  const auto found = cache().weights.find(storage);
  if (found == cache().weights.end()) {
    if (unseen) cache().pointed_to[cache().next_pointed_to++ % cache().pointed_to.size()] = storage;
    return;
  }
  PyObject* weight = found->second;
  for (const Kind to : precisions) {
    Entry* entry = entry_of(weight, to);
    if (entry != nullptr && entry->trust != Trust::never) entry->trust = unseen ? Trust::never : Trust::open;
  }
}

void renew(PyObject* const* weights, Py_ssize_t count) noexcept {
  if (!settings.on || cache().entries.empty()) return;
  struct Renewed {
    std::shared_ptr<Entry> entry;
    PyObject* cast;
    PyObject* weight;
    PyObject* memory;
  };
  std::vector<Renewed> renewed;
  std::vector<kernels::Job> jobs;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* weight = weights[i];
    for (const Kind to : precisions) {
      const auto found = cache().entries.find({weight, to});
      if (found == cache().entries.end()) continue;
      const std::shared_ptr<Entry> entry = found->second;
      if (entry->cast == nullptr || entry->busy || entry->trust >= Trust::open) continue;
      if (std::exchange(entry->is_fresh, false) && is_unchanged(*entry, weight)) continue;
      entry->trust = Trust::changed;
      const Sight now = tensor::look_at(weight);
      if (entry->form == Form::packed || !now.same_place(entry->sight) || !has_its_shape(*entry, weight) ||
          !tensor::is_held_once(entry->cast)) {
        continue;
      }
      entry->sight = now;
      entry->samples = entry->look();
      entry->trust = Trust::sure;
      entry->busy = true;
      entry->quiet_uses = 0;
      jobs.emplace_back(entry->values, kernels::Float::f32, const_cast<char*>(tensor::look_at(entry->cast).data),
                        tensor::float_of(to), static_cast<std::size_t>(entry->elements));
      renewed.push_back({entry, Py_NewRef(entry->cast), Py_NewRef(weight), hold_memory(weight)});
    }
  }
  if (jobs.empty()) return;
  const unsigned threads = tensor::torch_threads();
  without_gil([&] { kernels::cast_many(jobs, threads); });
  for (const Renewed& one : renewed) {
    one.entry->busy = false;
    Py_DECREF(one.cast);
    Py_DECREF(one.weight);
    Py_XDECREF(one.memory);
  }
  counts.refreshes += renewed.size();
}

PyObject* cast_to_write(PyObject* weight) noexcept {
  if (!settings.on) return nullptr;
  for (const Kind to : precisions) {
    Entry* entry = entry_of(weight, to);
    if (entry == nullptr || !entry->has(Form::plain) || entry->busy || entry->trust >= Trust::open) continue;
    const bool may_write = tensor::look_at(weight).same_place(entry->sight) && has_its_shape(*entry, weight) &&
                           tensor::is_held_once(entry->cast);
    if (!may_write) continue;
    // Whoever needs the weight before it was written sees that its cast is held elsewhere, and makes one of his own.
    entry->trust = Trust::changed;
    return entry->cast;
  }
  return nullptr;
}

void was_written(PyObject* weight, PyObject* cast) noexcept {
  for (const Kind to : precisions) {
    Entry* entry = entry_of(weight, to);
    if (entry == nullptr || entry->cast != cast || entry->trust != Trust::changed) continue;
    const Sight now = tensor::look_at(weight);
    if (!now.same_place(entry->sight)) continue;
    entry->sight = now;
    entry->samples = entry->look();
    entry->trust = Trust::sure;
    entry->is_fresh = true;
    ++counts.refreshes;
  }
}

void forget(PyObject* weight) noexcept { forget_address(weight); }

void forget_all() noexcept {
  auto dropped = std::move(cache().entries);
  cache().entries.clear();
  cache().recent = {};
  cache().weights.clear();
  cache().pointed_to = {};
}

Statistics statistics() noexcept { return counts; }

void reset_statistics() noexcept { counts.hits = counts.refreshes = counts.refused = 0; }

}  // namespace habana_mp::weights

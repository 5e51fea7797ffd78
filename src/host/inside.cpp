#include "host/inside.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "errors.hpp"
#include "from_c.hpp"
#include "host/ledger.hpp"
#include "host/modes.hpp"
#include "host/system_memory.hpp"
#include "host/view.hpp"

namespace habana_mp::host {

Inside inside;

namespace {

Assumption tensor_inside{
    "torch.tensor-inside",
    "a tensor's implementation and its storage hold at fixed offsets: keys, storage, version, memory, who frees "
    "it, and counts of owners; a tensor that a torch._C.ScriptDict holds has one owner more, and so has an array "
    "of NumPy's",
    "samples of all kinds agree on each offset, and on no other one; owners are counted before and after",
    "no cast of a weight is cached, nothing is packed, no memory of casts is used again"};

bool found_all = false;

// Torch objects that count or add owners.
PyCFunction untyped_storage = nullptr;  // Tensor.untyped_storage
PyObject* gradient_edge = nullptr;      // torch.autograd.graph.get_gradient_edge; never released, like the next one
PyObject* held_in_cpp = nullptr;        // a torch._C.ScriptDict from numbers to the tensors that have a holder

constexpr std::size_t implementation_size = 192;
constexpr std::size_t storage_size = 96;
constexpr std::size_t counter_size = 40;

struct Sample {
  Owned tensor;
  const void* storage;
  const void* data;
  std::uint32_t version;
  std::uint32_t holders;
  std::uint32_t owners;
  std::uint32_t by_object;  // of these, those that the storage's Python object adds
  bool own;                 // the memory is from torch's allocator
  std::uint8_t resizable;
};

// Makes plain tensors and views with different versions. The memory of some belongs to NumPy; others were NumPy arrays
// for a time. Nullopt with an exception set on failure.
std::optional<std::vector<Sample>> make_samples(Owned& aliases) {
  Owned list = made_by(
      "import torch\n"
      "import numpy\n"
      "def make():\n"
      "    with torch.inference_mode(False), torch.no_grad():\n"
      "        tensors = [torch.empty(3 + i, 5, device='cpu') for i in range(16)]\n"
      "        tensors += [torch.nn.Parameter(torch.empty(4, 6, device='cpu')) for i in range(4)]\n"
      "        base = torch.empty(6, 10, device='cpu')\n"
      "        tensors += [base.t(), base[1:, 2:], torch.empty(5, dtype=torch.int64, device='cpu')]\n"
      "        own = len(tensors)\n"
      "        tensors += [torch.from_numpy(numpy.empty(5 + i, 'float32')) for i in range(4)]\n"
      "        for tensor in tensors[5:9]:\n"
      "            tensor.numpy()\n"
      "        for i, tensor in enumerate(tensors):\n"
      "            for _ in range(i):\n"
      "                tensor.zero_()\n"
      "        aliases = [tensor.detach() for i, tensor in enumerate(tensors) for _ in range(i % 5)]\n"
      "        aliases += [torch._C.ScriptList([tensor]) for i, tensor in enumerate(tensors) for _ in range(i % 3)]\n"
      "        alone = torch.empty(1, device='cpu')\n"
      "        address = alone.untyped_storage()._cdata\n"
      "        by_object = torch._C._storage_Use_Count(address) - 1\n"
      "        rows = []\n"
      "        for i, tensor in enumerate(tensors):\n"
      "            storage = tensor.untyped_storage()\n"
      "            rows.append((tensor, storage._cdata, storage.data_ptr(), tensor._version, i < own,\n"
      "                         storage.resizable(), tensor._use_count()))\n"
      "            del storage\n"
      "            rows[-1] += (torch._C._storage_Use_Count(rows[-1][1]), by_object, aliases)\n"
      "    return rows\n");
  if (!list) return std::nullopt;
  std::vector<Sample> samples;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list.get()); ++i) {
    PyObject* row = PyList_GET_ITEM(list.get(), i);
    samples.push_back({Owned::borrowed(PyTuple_GET_ITEM(row, 0)), PyLong_AsVoidPtr(PyTuple_GET_ITEM(row, 1)),
                       PyLong_AsVoidPtr(PyTuple_GET_ITEM(row, 2)),
                       static_cast<std::uint32_t>(PyLong_AsUnsignedLong(PyTuple_GET_ITEM(row, 3))),
                       static_cast<std::uint32_t>(PyLong_AsUnsignedLong(PyTuple_GET_ITEM(row, 6))),
                       static_cast<std::uint32_t>(PyLong_AsUnsignedLong(PyTuple_GET_ITEM(row, 7))),
                       static_cast<std::uint32_t>(PyLong_AsUnsignedLong(PyTuple_GET_ITEM(row, 8))),
                       PyTuple_GET_ITEM(row, 4) == Py_True,
                       static_cast<std::uint8_t>(PyTuple_GET_ITEM(row, 5) == Py_True)});
  }
  // The caller destroys the aliases after it has read the counts.
  aliases = std::move(list);
  return samples;
}

// Sets a place that was found. Returns false if none was.
bool take(std::ptrdiff_t& place, std::optional<std::ptrdiff_t> found) {
  if (found) place = *found;
  return found.has_value();
}

// Finds the version counter's address in the implementation, and the version and the number of owners in the counter.
// False unless exactly one triple of offsets fits.
bool find_version(const std::vector<Sample>& samples, const Memory<implementation_size>& implementations,
                  Inside& found) {
  const auto place = only_offset<implementation_size>(sizeof(void*), [&](std::ptrdiff_t offset) {
    const auto counters = read_each<counter_size>(
        samples.size(), [&](std::size_t i) { return load<const void*>(implementations[i].data(), offset); });
    if (!counters) return false;
    const auto version = unique_offset<std::uint32_t>(samples, *counters, [](const Sample& s) { return s.version; });
    // The samples share their memory only with tensors that share their counter.
    const auto owners =
        unique_offset<std::uint32_t>(samples, *counters, [](const Sample& s) { return s.owners - s.by_object; });
    return version && owners && take(found.version, version) && take(found.counter_owners, owners);
  });
  return take(found.counter, place);
}

// Finds the dispatch keys in the implementation: the only value that is equal in all plain tensors, has one more bit in
// negated views of them, and has fewer bits in a tensor of inference mode.
bool find_keys(Inside& found) {
  constexpr std::size_t plain = 3;
  Owned list = made_by(
      "import torch\n"
      "def make():\n"
      "    with torch.inference_mode(False), torch.no_grad():\n"
      "        plain = [torch.empty(3, 5, device='cpu'), torch.nn.Parameter(torch.empty(7, device='cpu')),\n"
      "                 torch.empty(2, 4, 6, dtype=torch.float64, device='cpu').transpose(0, 1)]\n"
      "        negated = [torch._neg_view(tensor) for tensor in plain]\n"
      "    with torch.inference_mode():\n"
      "        return plain + negated + [torch.empty(3, 5, device=device) for device in ('cpu', 'meta')]\n");
  if (!list) return false;
  const auto memory = read_each<implementation_size>(2 * plain + 2, [&](std::size_t i) {
    return detail::implementation_of(PyList_GET_ITEM(list.get(), static_cast<Py_ssize_t>(i)));
  });
  list.reset();
  if (!memory) return false;
  const auto place = only_offset<implementation_size>(sizeof(std::uint64_t), [&](std::ptrdiff_t offset) {
    const auto at = [&](std::size_t i) { return load<std::uint64_t>((*memory)[i].data(), offset); };
    const std::uint64_t keys = at(0);
    const std::uint64_t negative = at(plain) & ~keys;
    const std::uint64_t least = at(2 * plain);
    bool fits = std::has_single_bit(negative) && least != 0 && least != keys && (least & ~keys) == 0;
    for (std::size_t i = 0; fits && i < plain; ++i) fits = at(i) == keys && at(plain + i) == (keys | negative);
    if (!fits) return false;
    found.plain = keys;
    found.least = least;
    found.negative = negative;
    found.meta = at(2 * plain + 1) & ~keys;
    return true;
  });
  return take(found.keys, place);
}

// Finds a storage's memory, its number of owners, the context and the deleter of the memory, and whether it is
// resizable. For memory of torch's own allocator the context is the memory itself.
bool find_memory(const std::vector<Sample>& samples, Inside& found) {
  const auto storages = read_each<storage_size>(samples.size(), [&](std::size_t i) { return samples[i].storage; });
  if (!storages ||
      !take(found.data, unique_offset<const void*>(samples, *storages, [](const Sample& s) { return s.data; })) ||
      !take(found.owners, unique_offset<std::uint32_t>(samples, *storages, [](const Sample& s) { return s.owners; })) ||
      !take(found.resizable,
            unique_offset<std::uint8_t>(samples, *storages, [](const Sample& s) { return s.resizable; }))) {
    return false;
  }
  // A std::unique_ptr with a function as deleter follows, and the memory's context.
  found.context = found.data + 16;
  found.deleter = found.context - 8;
  const auto deleter = [&](std::size_t i) { return load<const void*>((*storages)[i].data(), found.deleter); };
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const bool is_own = load<const void*>((*storages)[i].data(), found.context) == samples[i].data;
    if (is_own != samples[i].own || (deleter(i) == deleter(0)) != samples[i].own) return false;
  }
  found.own_deleter = deleter(0);
  // The only word that is the same in all storages of torch's allocator, and null in the storages of NumPy's memory.
  const auto allocator = only_offset<storage_size>(sizeof(void*), [&](std::ptrdiff_t offset) {
    const auto at = [&](std::size_t i) { return load<const void*>((*storages)[i].data(), offset); };
    bool fits = at(0) != nullptr;
    for (std::size_t i = 0; fits && i < samples.size(); ++i) fits = at(i) == (samples[i].own ? at(0) : nullptr);
    return fits;
  });
  found.allocator = allocator.value_or(0);
  return true;
}

// Returns the deleter of a slice of a storage; null if it is unknown. safetensors and torch.load(mmap=True) return such
// slices of a whole file.
const void* find_slice_deleter(const Inside& found) {
  const Owned list = made_by(
      "import torch\n"
      "def make():\n"
      "    slice = torch.empty(64, dtype=torch.uint8, device='cpu').untyped_storage()[16:32]\n"
      "    return [slice, slice._cdata]\n");
  if (!list) {
    clear_error();
    return nullptr;
  }
  const auto* storage = static_cast<const char*>(PyLong_AsVoidPtr(PyList_GET_ITEM(list.get(), 1)));
  return load<const void*>(storage, found.deleter);
}

bool find_functions() {
  const Owned made = made_by(
      "import torch\n"
      "from torch.autograd.graph import get_gradient_edge\n"
      "def make():\n"
      "    held = torch._C.ScriptDict({0: torch.empty(0, device='cpu')})\n"
      "    del held[0]\n"
      "    return [get_gradient_edge, held]\n");
  if (!made) return false;
  gradient_edge = immortal(PyList_GET_ITEM(made.get(), 0));
  held_in_cpp = immortal(PyList_GET_ITEM(made.get(), 1));
  return find_method(api.tensor_base, "untyped_storage", untyped_storage);
}

bool find_inside(Inside& found) {
  Owned aliases;
  const std::optional<std::vector<Sample>> samples = make_samples(aliases);
  if (!samples) return false;
  const auto implementations = read_each<implementation_size>(
      samples->size(), [&](std::size_t i) { return detail::implementation_of((*samples)[i].tensor.get()); });
  return implementations &&
         take(found.storage,
              unique_offset<const void*>(*samples, *implementations, [](const Sample& s) { return s.storage; })) &&
         take(found.holders,
              unique_offset<std::uint32_t>(*samples, *implementations, [](const Sample& s) { return s.holders; })) &&
         find_version(*samples, *implementations, found) && find_memory(*samples, found) && find_keys(found);
}

std::uint32_t owners_of_tensor(PyObject* tensor) noexcept {
  return load<std::uint32_t>(detail::implementation_of(tensor), inside.holders);
}

std::uint32_t owners_of_storage(const char* storage) noexcept { return load<std::uint32_t>(storage, inside.owners); }

// True if a weight has exactly one other owner: the node that accumulates its gradient.
bool other_owner_accumulates(PyObject* tensor) noexcept {
  if (!requires_grad(tensor)) return false;
  const Owned edge(PyObject_CallOneArg(gradient_edge, tensor));
  if (!edge) {
    drop_error();
    return false;
  }
  // get_gradient_edge has made the node if there was none.
  return owners_of_tensor(tensor) == 2;
}

// The number of owners of a tensor's storage and of the storage's Python object. The tensor and the Python object are
// owners of the storage too. In newer versions of torch the storage keeps the Python object, so the numbers for a
// single owner are measured once, in `single_holds`, and the owners that the object adds in `inside.by_object`.
struct Holds {
  std::uint32_t of_storage = 0;
  Py_ssize_t of_object = 0;
  bool operator==(const Holds&) const = default;
};
Holds single_holds;

Holds count_holds(PyObject* tensor, PyObject* object) noexcept {
  return {owners_of_storage(storage_of(tensor)), Py_REFCNT(object)};
}

// Returns the torch.UntypedStorage of a tensor; null with an exception set.
Owned storage_object(PyObject* tensor) noexcept { return Owned(untyped_storage(tensor, nullptr)); }

bool find_single_holds(PyObject* tensor) noexcept {
  const auto measured = [tensor] {
    const Owned object = storage_object(tensor);
    return object ? count_holds(tensor, object.get()) : Holds{};
  };
  single_holds = measured();
  const bool is_stable = single_holds != Holds{} && measured() == single_holds;
  inside.by_object = owners_of_storage(storage_of(tensor)) - 1;
  return is_stable;
}

// The references to a tensor's Python object beside a holder, if Python code has one.
Py_ssize_t references_beside = 0;

bool find_references(PyObject* tensor) {
  const bool is_alone = owners_of_tensor(tensor) == 1 && Py_REFCNT(tensor) == 1;
  const Owned holder = make_holder(tensor);
  references_beside = Py_REFCNT(tensor);
  return is_alone && holder && owners_of_tensor(tensor) == 2;
}

// True if a NumPy array adds an owner to the storage: it holds an alias of its tensor.
bool counts_arrays(PyObject* tensor) noexcept {
  const std::uint32_t before = owners_of_storage(storage_of(tensor));
  const Owned array(PyObject_CallMethod(tensor, "numpy", nullptr));
  return array && owners_of_storage(storage_of(tensor)) > before;
}

// Measures the counts of a tensor that has no other owner. False if they are not as expected.
bool find_owners() {
  const Owned list = made_by(
      "import torch\n"
      "def make():\n"
      "    with torch.inference_mode(False):\n"
      "        return [torch.empty(8, device='cpu')]\n");
  if (!list) return false;
  PyObject* tensor = PyList_GET_ITEM(list.get(), 0);
  return find_references(tensor) && find_single_holds(tensor) && counts_arrays(tensor);
}

void forget_held(std::size_t number) {
  const Owned key(PyLong_FromSize_t(number));
  // Keeps the tensor alive while the dictionary changes: code that runs when the tensor dies may make another holder.
  const Owned tensor(key ? PyObject_GetItem(held_in_cpp, key.get()) : nullptr);
  if (tensor) PyObject_DelItem(held_in_cpp, key.get());
  clear_error();
}

void holder_goes(PyObject* capsule) {
  const HeldError held;
  forget_held(reinterpret_cast<std::size_t>(PyCapsule_GetPointer(capsule, nullptr)));
}

}  // namespace

// All holders share one ScriptDict. A C++ list for each holder would run Python code to find the type of its items, and
// torch crashes if a signal handler raises an exception in that code or if no frame is left for it.
Owned make_holder(PyObject* tensor) noexcept {
  static std::size_t last = 0;
  const std::size_t number = ++last;
  const Owned key(PyLong_FromSize_t(number));
  const bool done = key && PyObject_SetItem(held_in_cpp, key.get(), tensor) == 0;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): not an address but the number itself
  void* const as_pointer = reinterpret_cast<void*>(number);
  Owned holder(done ? PyCapsule_New(as_pointer, nullptr, from_c<holder_goes>.pointer()) : nullptr);
  if (done && !holder) forget_held(number);
  clear_error();
  return holder;
}

void bind_inside() {
  Inside found;
  if (read_method == ReadMethod::layout && !tensor_inside.is_broken() && find_functions() && find_inside(found)) {
    found.slice_deleter = find_slice_deleter(found);
    inside = found;
    bind_views();
    found_all = can_view() && find_owners();
  }
  tensor_inside.settle(found_all);
  clear_error();
}

bool can_look_inside() noexcept { return found_all; }

bool detail::has_sparse_layout(PyObject* tensor) noexcept {
  const Owned order(PyObject_GetAttrString(tensor, "layout"));
  drop_error();
  return order && order.get() != api.strided && order.get() != api.jagged;
}

const char* address_of_storage(PyObject* storage) noexcept {
  const Owned address(PyObject_GetAttrString(storage, "_cdata"));
  const auto* found = address ? static_cast<const char*>(PyLong_AsVoidPtr(address.get())) : nullptr;
  clear_error();
  return found;
}

const char* memory_of(const char* storage) noexcept { return load<const char*>(storage, inside.data); }

static bool is_of_torch(const char* storage) noexcept {
  return load<const char*>(storage, inside.context) == load<const char*>(storage, inside.data);
}

// torch makes a storage permanently non-resizable when NumPy gets its memory. A storage that torch.load made has
// torch's memory and no allocator, and was never resizable.
bool numpy_had_memory(const char* storage) noexcept {
  const bool was_loaded = load<const void*>(storage, inside.allocator) == nullptr &&
                          load<const void*>(storage, inside.deleter) == inside.own_deleter;
  return is_of_torch(storage) && !was_loaded && load<std::uint8_t>(storage, inside.resizable) == 0;
}

bool is_known_memory(const char* storage) {
  if (is_of_torch(storage)) return true;
  const bool is_slice =
      inside.slice_deleter != nullptr && load<const void*>(storage, inside.deleter) == inside.slice_deleter;
  const char* whole = is_slice ? load<const char*>(storage, inside.context) : nullptr;
  return whole != nullptr && is_of_private_file(whole, memory_of(whole));
}

bool is_memory_of_one_allocator(PyObject* one, PyObject* other) noexcept {
  const auto deleter = [](PyObject* tensor) { return load<const void*>(storage_of(tensor), inside.deleter); };
  return deleter(one) == deleter(other);
}

bool has_uncounted_owner(PyObject* tensor) {
  const Owned object = storage_object(tensor);
  drop_error();
  const std::uint32_t by_object = single_holds.of_storage - 1;
  return !object || Py_REFCNT(object.get()) != single_holds.of_object ||
         snapshot_of(tensor).has_uncounted_owner(by_object);
}

bool holds_its_memory_alone(PyObject* tensor) {
  Owned object = storage_object(tensor);
  const bool is_alone = object && count_holds(tensor, object.get()) == single_holds;
  object.reset();
  drop_error();
  const std::uint32_t owners = owners_of_tensor(tensor);
  return is_alone && (owners == 1 || (owners == 2 && other_owner_accumulates(tensor)));
}

bool Geometry::is_dense() const {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] != 1) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [this](std::size_t a, std::size_t b) { return strides[a] < strides[b]; });
  std::int64_t expected = 1;
  for (const std::size_t i : order) {
    if (strides[i] != expected) return false;
    expected *= sizes[i];
  }
  return true;
}

static bool read_view(const DLTensor& view, Geometry& geometry) {
  if (view.ndim != 0 && view.strides == nullptr) return false;
  geometry.values = static_cast<const char*>(view.data) + view.byte_offset;
  geometry.sizes.assign(view.shape, view.shape + view.ndim);
  geometry.strides.assign(view.strides, view.strides + view.ndim);
  return true;
}

bool read_geometry(PyObject* tensor, Geometry& geometry) {
  DLTensor view;
  return view_on_cpu(tensor, view) && read_view(view, geometry);
}

bool read_geometry_anywhere(PyObject* tensor, Geometry& geometry) {
  DLTensor view;
  return view_of(tensor, view) && view.data != nullptr && read_view(view, geometry);
}

bool has_same_layout(const DLTensor& view, const Geometry& geometry, bool same_strides) noexcept {
  if (static_cast<std::size_t>(view.ndim) != geometry.sizes.size()) return false;
  if (view.ndim != 0 && view.strides == nullptr) return false;
  for (std::size_t i = 0; i < geometry.sizes.size(); ++i) {
    const bool any_stride = !same_strides && geometry.sizes[i] == 1;
    if (view.shape[i] != geometry.sizes[i] || (!any_stride && view.strides[i] != geometry.strides[i])) return false;
  }
  return true;
}

bool has_layout(PyObject* tensor, const Geometry& geometry) noexcept {
  DLTensor view;
  return view_of(tensor, view) && has_same_layout(view, geometry, false);
}

bool is_held_once(PyObject* tensor, bool has_holder) noexcept {
  const char* storage = storage_of(tensor);
  return Py_REFCNT(tensor) == (has_holder ? references_beside : 1) &&
         owners_of_tensor(tensor) == (has_holder ? 2 : 1) && storage != nullptr && owners_of_storage(storage) == 1;
}

}  // namespace habana_mp::host

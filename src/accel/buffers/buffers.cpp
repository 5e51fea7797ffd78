#include "accel/buffers/buffers.hpp"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "gil.hpp"
#include "host/inside.hpp"
#include "kernels/cast.hpp"
#include "module_parts.hpp"
#include "tensor/cast_memory.hpp"

namespace py = pybind11;

namespace habana_mp::accel {

namespace {

constexpr std::size_t most_buffers = 16;
constexpr std::int64_t most_bytes = std::int64_t{32} << 20;

struct Buffer {
  PyObject* tensor = nullptr;  // owned, but not while it is lent
  PyObject* holder = nullptr;  // owned
  Kind kind = Kind::other;
  bool lent = false;
  host::Geometry geometry;

  [[nodiscard]] std::int64_t bytes() const {
    std::int64_t count = 1;
    for (const std::int64_t size : geometry.sizes) count *= size;
    return static_cast<std::int64_t>(tensor::bytes_as(kind, count));
  }
};

// Under the GIL, as everything here.
std::vector<Buffer> buffers;
std::int64_t bytes_held = 0;
std::size_t next_to_go = 0;

// Shapes that were asked for and not found, by their hash: only what is asked for again is worth a buffer.
std::array<std::size_t, 64> missed{};

std::size_t hash_of(const host::Geometry& geometry, Kind kind) {
  std::size_t hash = static_cast<std::size_t>(kind) + 1;
  for (const std::int64_t size : geometry.sizes) hash = hash * 1000003 + static_cast<std::size_t>(size);
  return hash;
}

// Others may run as it goes.
void release(const Buffer& buffer) {
  Py_XDECREF(buffer.holder);
  if (!buffer.lent) Py_DECREF(buffer.tensor);
}

void drop(Buffer& place) {
  bytes_held -= place.bytes();
  const Buffer gone = std::exchange(place, std::move(buffers.back()));
  buffers.pop_back();
  release(gone);
}

// Is there room for so many bytes? What was not lent for some time goes.
bool make_room(std::int64_t bytes) {
  if (bytes > most_bytes / 2) return false;
  for (std::size_t tried = 0; buffers.size() >= most_buffers || bytes_held + bytes > most_bytes; ++tried) {
    if (tried == most_buffers) return false;
    const std::size_t place = next_to_go++ % buffers.size();
    if (!buffers[place].lent) drop(buffers[place]);
  }
  return true;
}

// A cast that an operation is done with becomes a buffer. Takes the reference.
void adopt(PyObject* cast) {
  Buffer made;
  made.tensor = cast;
  made.kind = host::kind_of_tensor(cast);
  const bool fits = Py_TYPE(cast) == host::api.tensor && host::is_held_once(cast, false) &&
                    host::read_geometry(cast, made.geometry) && made.geometry.is_dense();
  const std::size_t hash = fits ? hash_of(made.geometry, made.kind) : 0;
  if (!fits || std::exchange(missed[hash % missed.size()], hash) != hash || !make_room(made.bytes())) {
    Py_DECREF(cast);
    return;
  }
  made.holder = host::make_holder(cast);  // others may run
  if (made.holder == nullptr || !host::is_held_once(cast, true) || buffers.size() >= most_buffers) {
    Py_XDECREF(made.holder);
    Py_DECREF(cast);
    return;
  }
  bytes_held += made.bytes();
  buffers.push_back(std::move(made));
}

}  // namespace

PyObject* cast_for_now(PyObject* tensor, Kind from, Kind to, tensor::CastResult& seen, bool& for_now) {
  DLTensor source;
  if (!host::can_look_inside() || !host::is_plain_tensor(tensor) || tensor::is_watched(tensor, seen) ||
      !host::view_on_cpu(tensor, source)) {
    return tensor::cast(tensor, from, to, seen);
  }
  for_now = true;
  PyObject* const lent = borrow_buffer(source, to);
  if (lent == nullptr) return tensor::cast(tensor, from, to, seen);
  const std::int64_t count = host::count_elements(tensor);
  seen.bytes += tensor::bytes_as(to, count);
  // Others may run meanwhile; what is lent stays what it is.
  tensor::convert(static_cast<const char*>(source.data) + source.byte_offset, from,
                  const_cast<char*>(host::look_at(lent).data), to, count);
  return lent;
}

bool has_uneven_rows(PyObject* tensor, bool heeds_single_elements) noexcept {
  DLTensor view;
  if (!host::view_on_cpu(tensor, view) || view.ndim < 3 || view.strides == nullptr) return false;
  std::int64_t expected = -1;
  for (std::int32_t i = view.ndim - 2; i >= 0; --i) {
    if (view.shape[i] == 1 && !heeds_single_elements) continue;
    if (expected >= 0 && view.strides[i] != expected) return true;
    expected = view.strides[i] * view.shape[i];
  }
  return false;
}

PyObject* cast_in_rows(PyObject* tensor, Kind from, Kind to, tensor::CastResult& seen) noexcept {
  DLTensor source;
  host::Geometry geometry;
  if (!host::can_look_inside() || tensor::is_watched(tensor, seen) || !host::view_on_cpu(tensor, source))
    return nullptr;
  // A cast of what has gaps has none, and its rows may lie evenly.
  if (from != to && (!host::read_geometry(tensor, geometry) || !geometry.is_dense())) return nullptr;
  const auto size = static_cast<std::ptrdiff_t>(kernels::size_of(tensor::float_of(from)));
  const auto target_size = static_cast<std::ptrdiff_t>(kernels::size_of(tensor::float_of(to)));
  std::vector<kernels::Axis> axes;
  std::vector<std::int64_t> strides(static_cast<std::size_t>(source.ndim));
  std::int64_t count = 1;
  for (std::int32_t i = source.ndim - 1; i >= 0; --i) {
    strides[static_cast<std::size_t>(i)] = count;
    axes.push_back({static_cast<std::size_t>(source.shape[i]), source.strides[i] * size, count * target_size});
    count *= source.shape[i];
  }
  if (count == 0) return nullptr;
  DLTensor wanted = source;
  wanted.strides = strides.data();
  PyObject* made = borrow_buffer(wanted, to);
  void* values = nullptr;
  if (made != nullptr) {
    values = const_cast<char*>(host::look_at(made).data);
  } else {
    made = host::allocate_like(source, to, values);
    if (made == nullptr) return nullptr;
  }
  kernels::Job job(static_cast<const char*>(source.data) + source.byte_offset, tensor::float_of(from), values,
                   tensor::float_of(to), std::move(axes));
  const unsigned threads = host::torch_threads();
  without_gil([&] { kernels::cast_many({&job, 1}, threads); });
  seen.bytes += tensor::bytes_as(to, count);
  return made;
}

PyObject* borrow_buffer(const DLTensor& wanted, Kind kind) noexcept {
  // The same strides: how a convolution's result lies depends on those of dimensions of one element too.
  const auto found = std::find_if(buffers.rbegin(), buffers.rend(), [&](const Buffer& one) {
    return !one.lent && one.kind == kind && host::lies_alike(wanted, one.geometry, true) &&
           host::is_held_once(one.tensor, true);
  });
  if (found == buffers.rend()) return nullptr;
  found->lent = true;
  return found->tensor;
}

void give_back(PyObject* cast) noexcept {
  const auto found = std::find_if(buffers.begin(), buffers.end(),
                                  [cast](const Buffer& one) { return one.lent && one.tensor == cast; });
  if (found == buffers.end()) {
    if (PyErr_Occurred() == nullptr) return adopt(cast);  // not with the exception of an operation that failed
    Py_DECREF(cast);
    return;
  }
  if (host::is_held_once(cast, true)) {
    found->lent = false;
    return;
  }
  drop(*found);
  Py_DECREF(cast);
}

std::size_t buffer_count() noexcept { return buffers.size(); }

void forget_buffers() noexcept {
  const std::vector<Buffer> gone = std::exchange(buffers, {});
  bytes_held = 0;
  for (const Buffer& one : gone) release(one);
}

namespace {

void add_to(py::module_& module) { module.def("buffer_count", &buffer_count); }

[[maybe_unused]] const bool is_plugged_in = [] {
  tensor::CastMemory& memory = tensor::cast_memory;
  memory.cast_for_now = &cast_for_now;
  memory.has_uneven_rows = &has_uneven_rows;
  memory.cast_in_rows = &cast_in_rows;
  memory.borrow = &borrow_buffer;
  memory.give_back = &give_back;
  memory.forget = &forget_buffers;
  module_parts().push_back({"buffers", &add_to});
  return true;
}();

}  // namespace

}  // namespace habana_mp::accel

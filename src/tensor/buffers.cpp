#include "tensor/buffers.hpp"

#include <algorithm>
#include <array>
#include <new>
#include <utility>
#include <vector>

#include "forks.hpp"
#include "gil.hpp"
#include "host/inside.hpp"
#include "host/tensors.hpp"
#include "kernels/cast.hpp"

namespace habana_mp::tensor {

namespace {

constexpr std::size_t most_buffers = 16;
constexpr std::int64_t most_bytes = std::int64_t{32} << 20;

struct Buffer {
  PyObject* tensor = nullptr;  // borrowed; identifies the buffer
  Owned waiting;               // the same tensor, owned; null while it is lent
  Owned holder;                // released before `waiting`
  Kind kind = Kind::other;
  host::Geometry geometry;

  [[nodiscard]] bool is_lent() const { return !waiting; }
  [[nodiscard]] std::int64_t bytes() const { return static_cast<std::int64_t>(bytes_as(kind, geometry.count())); }
};

// The GIL guards all state of this file.
NeverDestroyed<std::vector<Buffer>> buffers;
std::int64_t bytes_held = 0;
std::size_t next_to_go = 0;

// Hashes of shapes for which no buffer was found. A shape gets a buffer only if it comes again.
std::array<std::size_t, 64> missed{};

std::size_t hash_of(const host::Geometry& geometry, Kind kind) {
  std::size_t hash = static_cast<std::size_t>(kind) + 1;
  for (const std::int64_t size : geometry.sizes) hash = hash * 1000003 + static_cast<std::size_t>(size);
  return hash;
}

// Removes the buffer, which may run other code.
void drop(Buffer& place) {
  bytes_held -= place.bytes();
  const Buffer gone = std::exchange(place, std::move(buffers->back()));
  buffers->pop_back();
}

// Makes room for this many bytes. Drops other buffers in turn, but not those that are lent. Returns false if there is
// not enough room.
bool make_room(std::int64_t bytes) {
  if (bytes > most_bytes / 2) return false;
  for (std::size_t tried = 0; buffers->size() >= most_buffers || bytes_held + bytes > most_bytes; ++tried) {
    if (tried == most_buffers) return false;
    const std::size_t place = next_to_go++ % buffers->size();
    if (!(*buffers)[place].is_lent()) drop((*buffers)[place]);
  }
  return true;
}

// Turns a cast that an operation no longer needs into a buffer, if its shape came before.
void adopt(Owned cast) {
  Buffer made;
  made.waiting = std::move(cast);
  made.tensor = made.waiting.get();
  made.kind = host::kind_of_tensor(made.tensor);
  const bool fits = host::is_exact_tensor(made.tensor) && host::is_held_once(made.tensor, false) &&
                    host::read_geometry(made.tensor, made.geometry) && made.geometry.is_dense();
  const std::size_t hash = fits ? hash_of(made.geometry, made.kind) : 0;
  if (!fits || std::exchange(missed[hash % missed.size()], hash) != hash || !make_room(made.bytes())) return;
  made.holder = host::make_holder(made.tensor);  // may run other code
  if (!made.holder || !host::is_held_once(made.tensor, true) || buffers->size() >= most_buffers) return;
  const std::int64_t bytes = made.bytes();
  buffers->push_back(std::move(made));
  bytes_held += bytes;
}

// Returns a buffer of this kind with the layout of this view, and sets `values` to its memory. The caller passes it to
// `give_back`. Returns null, with no exception set, if no such buffer is free.
Owned borrow_buffer(const DLTensor& wanted, Kind kind, void*& values) noexcept {
  // All strides must match: the layout of a convolution's result also depends on those of dimensions of one element.
  const auto found = std::find_if(buffers->rbegin(), buffers->rend(), [&](const Buffer& one) {
    return !one.is_lent() && one.kind == kind && host::has_same_layout(wanted, one.geometry, true) &&
           host::is_held_once(one.tensor, true);
  });
  if (found == buffers->rend()) return nullptr;
  values = const_cast<char*>(host::snapshot_of(found->tensor).data);
  return std::move(found->waiting);
}

// Forgets the lent buffers in a forked child. Other threads' buffers are never given back. A buffer that this thread
// has borrowed counts as a new one when it is given back.
void forget_lent_buffers() {
  std::vector<Buffer> gone;
  for (std::size_t i = buffers->size(); i-- > 0;) {
    if (!(*buffers)[i].is_lent()) continue;
    bytes_held -= (*buffers)[i].bytes();
    gone.push_back(std::exchange((*buffers)[i], std::move(buffers->back())));
    buffers->pop_back();
  }
}
[[maybe_unused]] const bool is_mended = forks::mend_in_child(&forget_lent_buffers);

}  // namespace

Owned cast_transient(PyObject* tensor, Kind from, Kind to, CastResult& seen, bool& transient) {
  DLTensor source;
  if (!host::can_look_inside() || !host::is_plain_tensor(tensor) || must_be_seen(tensor, seen) ||
      !host::view_on_cpu(tensor, source) || !host::is_of_kind(source, from)) {
    return cast(tensor, from, to, seen);
  }
  transient = true;
  void* values = nullptr;
  Owned lent = borrow_buffer(source, to, values);
  if (!lent) return cast(tensor, from, to, seen);
  const std::int64_t count = host::count_in(source);
  seen.bytes += bytes_as(to, count);
  // Other code may run meanwhile. A lent buffer stays as it is.
  convert(static_cast<const char*>(source.data) + source.byte_offset, from, values, to, count);
  return lent;
}

Owned copy_in_rows(PyObject* tensor, Kind kind) {
  DLTensor source;
  if (!host::can_look_inside() || host::is_negative(tensor) || !host::view_on_cpu(tensor, source)) return nullptr;
  if (!host::is_of_kind(source, kind) || source.strides == nullptr) return nullptr;
  const auto size = static_cast<std::ptrdiff_t>(bytes_as(kind, 1));
  std::vector<kernels::Axis> axes;
  std::vector<std::int64_t> strides(static_cast<std::size_t>(source.ndim));
  std::int64_t count = 1;
  for (std::int32_t i = source.ndim - 1; i >= 0; --i) {
    strides[static_cast<std::size_t>(i)] = count;
    axes.push_back({static_cast<std::size_t>(source.shape[i]), source.strides[i] * size, count * size});
    count *= source.shape[i];
  }
  if (count == 0) return nullptr;
  DLTensor wanted = source;
  wanted.strides = strides.data();
  void* values = nullptr;
  Owned made = borrow_buffer(wanted, kind, values);
  if (!made) made = host::allocate_like(source, kind, values);
  if (!made) return nullptr;
  const kernels::Job job(static_cast<const char*>(source.data) + source.byte_offset, float_of(kind), values,
                         float_of(kind), std::move(axes));
  const unsigned threads = host::torch_threads();
  without_gil_if(count >= gil_kept_below, [&] { kernels::cast(job, threads); });
  return made;
}

void give_back(PyObject* cast) noexcept {
  Owned given(cast);
  const auto found = std::find_if(buffers->begin(), buffers->end(),
                                  [cast](const Buffer& one) { return one.is_lent() && one.tensor == cast; });
  if (found == buffers->end()) {
    // An operation that failed has left its exception, so no other code may run.
    if (PyErr_Occurred() != nullptr) return;
    try {
      adopt(std::move(given));
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): it goes, as any tensor does
    }
  } else if (host::is_held_once(cast, true)) {
    found->waiting = std::move(given);
  } else {
    drop(*found);
  }
}

std::size_t buffer_count() noexcept { return buffers->size(); }

void forget_buffers() noexcept {
  const std::vector<Buffer> gone = std::exchange(*buffers, {});
  bytes_held = 0;
}

}  // namespace habana_mp::tensor

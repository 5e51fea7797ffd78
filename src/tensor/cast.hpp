// Casts of tensors.
#pragma once

#include <cstdint>

#include "host/modes.hpp"
#include "host/view.hpp"
#include "kernels/types.hpp"
#include "tensor/blocks.hpp"

namespace habana_mp::tensor {

// Facts about the casts of one call, summed up.
struct CastResult {
  std::uint64_t bytes = 0;  // the size of the new tensors
  bool recorded = false;    // autograd tracks one of them, and so every result computed from it
  bool by_sparse = false;   // input: the call has a sparse tensor, so gradients may change their layout
};

// Returns `tensor` in the precision `to` (f32, bf16 or f16), or null with a Python exception set. Our own kernels make
// the cast only if autograd, tracing and dispatch modes are inactive; otherwise torch makes it, and they see it.
inline Owned cast(PyObject* tensor, Kind from, Kind to, CastResult& seen);

// Sets the function that makes a cast in autograd's graph if the cast needs a large block or its gradient may have
// another layout. The function takes the tensor and a dtype. Keeps a reference to it; null for none.
void set_tracked_cast(PyObject* function) noexcept;

// Sets the function that brings a float32 number on another device than the CPU into a range, without a wait for the
// device. It takes the tensor and the largest value. Keeps a reference to it; null for none.
void set_number_in_range(PyObject* function) noexcept;

// True if a cast of this many values, or its gradient, is large enough for a block of its own.
inline bool is_cast_to_block(std::int64_t count) noexcept {
  return is_block(static_cast<std::uint64_t>(count) * sizeof(float));
}

// Returns a cast of a plain tensor in such a block, if only the caller needs to see the cast. Returns null, with no
// exception set, if that is not possible.
Owned cast_in_block(PyObject* tensor, Kind to);

// True if autograd tracks a cast of this plain CPU tensor, and no tracer or dispatch mode sees it.
bool is_cast_in_graph(PyObject* tensor) noexcept;

// True if torch must see a cast of this tensor: autograd tracks it, the thread is traced, or the tensor's values count
// as negated. Sets `seen.recorded` if autograd tracks it.
bool must_be_seen(PyObject* tensor, CastResult& seen);

// Casts values of a tensor that the caller holds. Many values are cast with torch's number of threads and without the
// GIL. As in torch, no other thread may give the tensor other memory meanwhile.
inline void convert(const void* source, Kind from, void* target, Kind to, std::int64_t count);

// Below this many values a kernel ends before another thread could use the GIL.
inline constexpr std::int64_t gil_kept_below = std::int64_t{1} << 18;

// The functions that make casts. While calls are watched, they are replaced by functions that measure the time of each
// cast.
struct Makers {
  Owned (*cast)(PyObject* tensor, Kind from, Kind to, CastResult& seen);
  void (*convert)(const void* source, Kind from, void* target, Kind to, std::int64_t count);
};
extern const Makers untimed_makers;
extern Makers makers;
inline bool are_casts_timed() noexcept { return makers.cast != untimed_makers.cast; }
inline Owned cast(PyObject* tensor, Kind from, Kind to, CastResult& seen) {
  return makers.cast(tensor, from, to, seen);
}
inline void convert(const void* source, Kind from, void* target, Kind to, std::int64_t count) {
  makers.convert(source, from, target, to, count);
}

// Returns the kernels' name of this kind.
kernels::Float float_of(Kind kind) noexcept;

// Returns the size in bytes of `count` values of this kind.
std::uint64_t bytes_as(Kind kind, std::int64_t count) noexcept;

// As cast, but finite values beyond the range of `to` become its largest finite value instead of an infinity (rule 9).
Owned cast_saturated(PyObject* tensor, Kind from, Kind to, CastResult& seen);

// Returns the largest finite value of a precision.
double largest(Kind kind) noexcept;

}  // namespace habana_mp::tensor

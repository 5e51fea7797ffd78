// Making a cast of a tensor.
#pragma once

#include <cstdint>

#include "host/held_memory.hpp"
#include "host/modes.hpp"
#include "host/view.hpp"
#include "kernels/types.hpp"
#include "tensor/cast_memory.hpp"

namespace habana_mp::tensor {

// What was seen while casting; sums over the casts of one call.
struct CastResult {
  std::uint64_t bytes = 0;  // the size of the new tensors
  bool recorded = false;    // autograd records one of them, and so what is computed of it
  bool by_sparse = false;   // given: they are made for a call with a sparse tensor, where gradients may change layouts
};

// `tensor` in the precision `to` (f32, bf16 or f16), or null with a Python exception set. Autograd, tracing and
// dispatch modes see the cast; only where none of them is at work is it made by our own kernels.
inline Owned cast(PyObject* tensor, Kind from, Kind to, CastResult& seen);

// What makes a cast in autograd's graph whose memory is large, or whose gradient may have another layout: called with
// the tensor and a dtype. Held; null for none.
void set_recorded_cast(PyObject* function) noexcept;

// Is a cast of so many values, or its gradient, large enough for a block of its own?
inline bool is_cast_to_block(std::int64_t count) noexcept {
  return is_block(static_cast<std::uint64_t>(count) * sizeof(float));
}

// A cast of a plain tensor that nobody has to see, in such a block. Null, without an exception, where that is not
// possible.
Owned cast_in_block(PyObject* tensor, Kind to);

// Is a cast of this tensor recorded, and there is nothing about it but the graph?
bool is_cast_in_graph(PyObject* tensor) noexcept;

// Would anybody but the caller have to see a cast of this tensor?
bool must_be_seen(PyObject* tensor, CastResult& seen);

// Casts the values of `tensor`, whose memory begins at `source`. Many of them by torch's number of threads and without
// the GIL: the tensor's memory is held meanwhile.
inline void convert(PyObject* tensor, const void* source, Kind from, void* target, Kind to, std::int64_t count);

// Below so many values a kernel is done sooner than another thread could make use of the GIL.
inline constexpr std::int64_t gil_kept_below = std::int64_t{1} << 18;

// Runs a kernel that reads so many values of this tensor, whose address was read with nothing in between that may run
// Python code.
template <class Work>
void run_on(PyObject* tensor, std::int64_t count, const Work& work) {
  if (count < gil_kept_below) {
    work();
  } else {
    host::without_gil_on({tensor}, work);
  }
}

// What makes them. The watch takes the time of each.
struct Makers {
  Owned (*cast)(PyObject* tensor, Kind from, Kind to, CastResult& seen);
  void (*convert)(PyObject* tensor, const void* source, Kind from, void* target, Kind to, std::int64_t count);
};
extern const Makers untimed_makers;
extern Makers makers;
inline Owned cast(PyObject* tensor, Kind from, Kind to, CastResult& seen) {
  return makers.cast(tensor, from, to, seen);
}
inline void convert(PyObject* tensor, const void* source, Kind from, void* target, Kind to, std::int64_t count) {
  makers.convert(tensor, source, from, target, to, count);
}

// The type as the kernels name it.
kernels::Float float_of(Kind kind) noexcept;

// What so many values of a kind take in memory.
std::uint64_t bytes_as(Kind kind, std::int64_t count) noexcept;

// As cast, but finite values beyond the range of `to` become its largest finite value instead of an infinity (rule 9).
Owned cast_saturated(PyObject* tensor, Kind from, Kind to, CastResult& seen);

// Tensor.add_ of two plain tensors. False with a Python exception set.
bool add_in_place(PyObject* tensor, PyObject* other) noexcept;

// The largest finite value of a precision.
double largest(Kind kind) noexcept;

}  // namespace habana_mp::tensor

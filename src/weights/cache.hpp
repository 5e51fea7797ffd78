// The cache of weight casts. A cached cast is valid while the weight's memory, its version and eight of its values are
// the same. A weight that requires a gradient loses its casts with the step of any optimizer.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <array>
#include <cstdint>
#include <optional>

#include "host/inside.hpp"
#include "host/modes.hpp"
#include "owned.hpp"
#include "tensor/cast.hpp"

namespace habana_mp::weights {

struct Settings {
  bool on = false;
  Owned view;      // torch.ops.aten._unsafe_view, unpatched; or null
  Owned recorded;  // takes a weight and its cast, and makes the cast a part of autograd's graph; or null
  // What the cache asks of a weight's accelerator, as Python functions. The first one takes a weight, and returns the
  // accelerator's number, or -1 if casts cannot be cached there. The second one takes that number, and returns how many
  // bytes are free. The third one takes a cast and a stream, for which the current stream waits.
  Owned accelerator_of;
  Owned free_memory;
  Owned wait_for_stream;
  // The largest size of all cached casts together. If it is not set, the limit is a share of the free memory (see
  // `MemoryLimit`).
  std::optional<std::uint64_t> most_bytes;
  std::int64_t least_part = 0;     // a view of a weight with fewer elements is cast separately
  std::int64_t least_tracked = 0;  // torch casts a trained weight with fewer elements, if autograd tracks the call
};
extern NeverDestroyed<Settings> settings;
// Applies the settings. Switching the cache off drops all casts.
void configure(Settings wanted) noexcept;

// True if the cache is on and no tracer or dispatch mode needs to see this thread's casts.
bool may_be_cached() noexcept;

// How autograd tracks a cast: not at all, in an ordinary call, or in many products whose gradients are summed in the
// precision that the cast has in the graph, float32.
enum class Tracking : std::uint8_t { none, recorded, often };

// Returns the cached cast of the weight, a torch.nn.Parameter in float32, in the lower precision `to`, and makes it if
// needed. Returns null if no cast can be cached; an exception is set only for an interrupt, or if memory runs out.
// Sets `elements` to the number of elements that were cast, below zero if a cast of other values was cached. Requires
// `may_be_cached`.
Owned cached_cast(PyObject* weight, Kind to, Tracking tracking, std::int64_t& elements);

// True if this plain tensor may be a view of a weight, so that it is worthwhile to look for the weight.
inline bool may_be_part(PyObject* tensor) noexcept {
  return settings->on && host::count_elements(tensor) >= settings->least_part && host::snapshot_of(tensor).owners > 1;
}

// True if torch should cast this weight itself in a call that autograd tracks. For a small weight that is trained, it
// would take longer to add a cached cast to the graph.
inline bool is_too_small_to_record(PyObject* weight) noexcept {
  return host::count_elements(weight) < settings->least_tracked && host::requires_grad(weight);
}

// Returns the same part of the weight's cast for a view of such a weight. In all else it behaves as `cached_cast`. If
// autograd tracks the cast, the view must be of the whole weight: for a part, the whole weight would be cast again
// after each step.
Owned cached_part(PyObject* view, Kind to, Tracking tracking, std::int64_t& elements);

// Returns a new cast, which is not cached, of this float32 tensor for many products that autograd tracks. Returns null,
// with no exception set, if an ordinary cast is to be made.
Owned cast_for_many(PyObject* tensor, Kind to);

// True if the cache has entries, so that an unseen write could make a cast wrong.
bool holds_any_cast() noexcept;

// The casts of the weights in this storage are made again before their next use, since code may write to the memory
// without a new version.
void doubt(const char* storage) noexcept;
// The same for all weights that have a cast.
void doubt_all() noexcept;
// The same. While this new tensor lives, the weights are cast in each call: it has their memory, and a version counter
// of its own.
void doubt_while_alive(const char* storage, PyObject* alias);
// The same, until the weights own their memory alone again: NumPy or DLPack gets it.
void lend(const char* storage) noexcept;

// Drops the casts of all weights that require a gradient: an optimizer's step begins or ends.
void drop_trained();

// While a graph of an accelerator's operations is captured, no cast of a weight on an accelerator is cached or taken
// from the cache: the casts become a part of the graph, since it may run again when the weights have changed.
void capture_begins() noexcept;
void capture_ends() noexcept;
bool is_capturing() noexcept;

// Drops the casts on accelerators if the current exception says that an accelerator's memory is used up. Returns true,
// with the exception cleared, if that has freed memory, so that the operation may succeed now.
bool gives_memory_back();

// True if this tensor has the memory of a weight that has a cast.
bool is_weight_memory(PyObject* tensor) noexcept;
// True if this tensor has the memory of a cached cast.
bool is_cached_memory(PyObject* tensor) noexcept;

// Reads anew how much memory is free before more casts are cached.
void forget_free_memory() noexcept;
void forget(PyObject* weight) noexcept;
void forget_all() noexcept;

// The reasons why a weight has no cached cast at the moment.
enum class Refusal : std::uint8_t {
  held,      // something has its memory but not its version counter
  lent,      // NumPy or DLPack may have its memory
  memory,    // its memory is not torch's own
  version,   // no version counts its changes: it was made in inference mode, or is a negated view
  device,    // it is on meta, on a device beside torch's accelerator, or on any device before torch 2.10
  capture,   // a graph is being captured
  layout,    // its values have gaps or overlap
  limit,     // the limit was reached
  changing,  // other code moves it, or makes its cast, at the same time
  count,
};
constexpr auto refusals = static_cast<std::size_t>(Refusal::count);
// Returns the reason in words, for the report.
const char* describe(Refusal refusal) noexcept;

struct Statistics {
  std::uint64_t hits = 0;                         // cached casts that were returned
  std::uint64_t refreshes = 0;                    // casts made again because the weight had changed
  std::uint64_t refreshed_bytes = 0;              // their size
  std::array<std::uint64_t, refusals> refused{};  // calls with a weight that could not be cached, by reason
  std::uint64_t products = 0;                     // products with a weight that our own kernels computed
  std::uint64_t weights = 0;                      // casts that are cached now
  std::uint64_t bytes = 0;                        // the size of all cached casts
};
extern Statistics counts;
void reset_statistics() noexcept;

}  // namespace habana_mp::weights

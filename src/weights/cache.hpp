// Casts of weights that are kept from call to call. One is handed out again only while it is certain that the weight
// holds the same values; where that is in doubt there is no kept cast, and the caller makes one.
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
  Owned view;      // torch.ops' aten::_unsafe_view, untouched; or null
  Owned recorded;  // makes a kept cast a part of autograd's graph, given the weight and the cast; or null
  // Beyond this no further weight is kept. Without it: beyond a share of the memory that is free (see `Room`).
  std::optional<std::uint64_t> most_bytes;
  std::int64_t least_part = 0;      // a view of a weight with fewer elements is cast by itself
  std::int64_t least_recorded = 0;  // so is a weight with fewer, by torch where that records a gradient
};
extern NeverDestroyed<Settings> settings;
// Switching it off drops what is kept.
void configure(Settings wanted) noexcept;

// Are casts kept, and may one be handed out in this thread as things are?
bool may_be_kept() noexcept;

// What is done with a cast: nothing of it is recorded, or it is; and then it may be a part of many products, whose
// gradients are summed in the precision that it has in the graph: float32.
enum class Use : std::uint8_t { unrecorded, recorded, recorded_often };

// The weight, a torch.nn.Parameter in float32, in the lower precision `to`. Null, without an exception but an
// interrupt's, where nothing is kept. `elements` tells how many had to be cast for this. To be called where casts may
// be kept.
Owned kept(PyObject* weight, Kind to, Use use, std::int64_t& elements) noexcept;

// Is it worth asking whether this plain tensor is a view of a weight?
inline bool may_be_part(PyObject* tensor) noexcept {
  return settings->on && host::count_elements(tensor) >= settings->least_part && host::snapshot_of(tensor).owners > 1;
}

// Where torch casts within a call that is recorded: is it too much trouble to ask for the kept cast of this weight? A
// small one that is trained takes longer to be made a part of the graph, and to be cast again after the step.
inline bool is_too_small_to_record(PyObject* weight) noexcept {
  return host::count_elements(weight) < settings->least_recorded && host::requires_grad(weight);
}

// As `kept`, of a view of such a weight: the same part of the weight's cast. Where a gradient is recorded, only a view
// of all of it: of a part the whole would be cast again after each step.
Owned kept_part(PyObject* view, Kind to, Use use, std::int64_t& elements) noexcept;

// A cast of this float32 tensor, which is none to be kept, for many products that are recorded. Null, without an
// exception, where one like any other is to be made.
Owned cast_for_many(PyObject* tensor, Kind to);

// The weight, a matrix, of which this plain tensor is the transposed view. Null, without an exception, where it is
// none.
Owned transposed_weight(PyObject* view) noexcept;

// Is a cast kept that somebody who writes unseen could make wrong?
bool keeps_anything() noexcept;

// Somebody may get hold of this storage's memory in a way that tells nobody when he writes to it. While he holds a
// tensor or storage of torch that is seen; a mere pointer is not (`unseen`).
void memory_escapes(const char* storage, bool unseen) noexcept;
// NumPy is about to be given this storage's memory: its arrays give away pointers and buffers in more ways than can be
// watched. Those that are only `lent` are dropped by who makes them.
void numpy_gets(const char* storage, bool lent) noexcept;

// These weights were written to, in whatever way: their casts are made again, all at once. Those that were written
// along with their weights are left alone where they `may_be_fresh`.
void renew(PyObject* const* weights, Py_ssize_t count, bool may_be_fresh) noexcept;

// For an optimizer that writes casts along with their weights, and counts that as one write: the kept cast of a weight,
// borrowed, if it may be written to; and that it was, in place of renew.
PyObject* cast_to_write(PyObject* weight) noexcept;
void was_written(PyObject* weight, PyObject* cast) noexcept;

// How much code runs, in all threads, that counts the version of what it writes up before it writes, or not at all. A
// weight's version says nothing of what is cast meanwhile.
extern std::uint32_t silent_writers;
// Such code runs in this thread while this lives.
class SilentWriting {
 public:
  SilentWriting() noexcept;
  ~SilentWriting();
  SilentWriting(const SilentWriting&) = delete;
  SilentWriting& operator=(const SilentWriting&) = delete;
};

// Is this the memory of a cast that is kept?
bool is_kept_memory(PyObject* tensor) noexcept;

void forget(PyObject* weight) noexcept;
void forget_all() noexcept;

// Why nothing of a weight is kept for the moment.
enum class Refusal : std::uint8_t {
  held,      // others hold its memory
  pointer,   // somebody took a pointer to its memory
  numpy,     // NumPy had its memory
  memory,    // its memory is not torch's own
  version,   // nothing counts its changes: inference mode made it, or it is a negated view
  layout,    // its values do not lie one after the other
  limit,     // the limit, or memory's end, was reached
  changing,  // another thread, or what runs within, changes it
};
constexpr auto refusals = static_cast<std::size_t>(Refusal::changing) + 1;
// In words for a person.
const char* describe(Refusal refusal) noexcept;

struct Statistics {
  std::uint64_t hits = 0;                         // casts handed out again
  std::uint64_t refreshes = 0;                    // casts made again because the weight had changed
  std::uint64_t refreshed_bytes = 0;              // their size
  std::uint64_t refresh_nanoseconds = 0;          // the time of those that were made for no call, but after a step
  std::array<std::uint64_t, refusals> refused{};  // calls that found a weight of which nothing could be kept, by why
  std::uint64_t weights = 0;                      // kept now
  std::uint64_t packed = 0;                       // of these, in a packed layout
  std::uint64_t bytes = 0;                        // their size
};
Statistics statistics() noexcept;
// Of the statistics, those that were refused.
const std::array<std::uint64_t, refusals>& refusals_so_far() noexcept;
void reset_statistics() noexcept;

}  // namespace habana_mp::weights

// The calls that are under way, and the functions that start and stop the watch.
#pragma once

#include "listeners.hpp"
#include "owned.hpp"
#include "watch/open_calls.hpp"
#include "watch/records.hpp"

namespace habana_mp::watch {

// One call of a handled operation, from its beginning to its end in the caller's frame.
struct Call : OpenCall<Call> {
  Call(const void* target, PyObject* const* arguments, Py_ssize_t count);
  ~Call();

  // Counts a weight of this call whose cast is not cached. `why` is a number of weights::Refusal.
  void weight_was_refused(std::size_t why) noexcept;

  // Examines the arguments and the result, which may be null, before the caller releases them.
  void ends(PyObject* const* arguments, Py_ssize_t count, PyObject* result);

  // True if a decision was recorded for it.
  [[nodiscard]] bool is_recorded() const noexcept;

  const void* target;
  std::uint64_t begin = 0;
  std::uint64_t inside = 0;  // nanoseconds of handled calls inside
  std::uint64_t casting = 0;
  bool is_casting = false;  // a cast is timed now; one inside of it counts with it
  Record* record = nullptr;
  std::uint64_t generation = 0;  // of the record
  // On an accelerator: the event at its beginning, and lists of pairs of events around the handled calls and the casts
  // inside of it; null if there are none.
  Owned device_begin;
  Owned device_inside;
  Owned device_casts;
};

// Records a decision for a call: the innermost one if `target` is its target, else one that is not timed.
// `some_by_torch`: torch made some of the casts, within the operation. `is_kept`: the operation's name lives as long as
// the process. `traced`: what `traced_place` returned when the call was traced, or null. `inside`: the name
// of the function that runs without casts, or null.
void decided(const void* target, const std::string& operation, bool is_kept, rules::Decision decision,
             const Amounts& amounts, bool some_by_torch, PyObject* traced, PyObject* inside);

// Returns what the function of `set_traced_place` returns, or None if calls are not watched.
Owned traced_place();

// Counts the time from its construction to its destruction as time for casts of the innermost call.
class CastTime {
 public:
  CastTime();
  ~CastTime();
  CastTime(const CastTime&) = delete;
  CastTime& operator=(const CastTime&) = delete;

 private:
  Call* call_;  // null if there is no call, or a cast around this one is timed
  std::uint64_t begin_ = 0;
  Owned device_begin_;
};

// Sets the Python functions that measure times on accelerators. `mark` takes a tensor or an event, and returns an event
// that is recorded now on its device, or None if no time is measured there. `took` takes the number of a record, the
// events around one of its calls, and the lists of pairs of events around the calls and the casts inside of it. Holds
// references.
void set_device_clock(PyObject* mark, PyObject* took) noexcept;

// Examines a call that neither a list nor a rule decides, if it is outside of modules. Returns `result`.
PyObject* seen_outside(const std::string& operation, PyObject* const* arguments, Py_ssize_t count, PyObject* result);

// Sets the Python function that returns the place of what torch.compile traces: (file or None, function, line, module
// path or None), or None. Holds a reference; null for none.
void set_traced_place(PyObject* function) noexcept;

// Starts to record each call with its module, and its line if `lines`. A cast that torch makes within its
// operation is estimated at these times, since it cannot be measured.
void begin(bool lines, double nanoseconds_a_cast, double nanoseconds_a_byte);
void stop() noexcept;

}  // namespace habana_mp::watch

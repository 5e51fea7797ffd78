// The calls that are under way, and the switch of the watch.
#pragma once

#include <memory>

#include "listeners.hpp"
#include "watch/open_calls.hpp"
#include "watch/records.hpp"

namespace habana_mp::watch {

enum class Detail : std::uint8_t { modules, lines };

// A call of an operation that has begun and not ended.
struct Operation : OpenCall<Operation> {
  const void* target = nullptr;
  std::uint64_t begin = 0;
  std::uint64_t inside = 0;  // nanoseconds of covered calls inside, and of other greenlets meanwhile
  std::uint64_t casting = 0;
  Record* record = nullptr;
  std::uint64_t generation = 0;  // of the record
};

// One call of a covered operation, between its beginning and its end in the caller's frame.
class Call {
 public:
  explicit Call(const void* target) noexcept;
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // No cast of a weight that it was given is kept, for this reason, a number of weights::Refusal.
  void weight_was_refused(std::uint8_t why) noexcept;

  // What it was given and what it gave, or null; looked at before the caller lets go of them.
  void ends(PyObject* const* arguments, Py_ssize_t count, PyObject* result) noexcept;

  // Was anything decided for it?
  [[nodiscard]] bool is_recorded() const noexcept;

 private:
  std::unique_ptr<Operation> operation_;  // null where there was no memory for it: then the call is not timed
};

// Something was decided for a call: of the innermost one where the target is its, else of one that is not timed.
// `some_by_torch`: torch made some of the casts, within the operation.
// `is_kept`: the operation's name lives as long as the process. Throws std::bad_alloc where there is no memory for a
// record.
void decided(const void* target, const std::string& operation, bool is_kept, rules::Decision decision,
             const Amounts& amounts, bool some_by_torch);

// The time from its construction to its end counts as the innermost call's time for casts.
class CastTime {
 public:
  CastTime() noexcept;
  ~CastTime();
  CastTime(const CastTime&) = delete;
  CastTime& operator=(const CastTime&) = delete;

 private:
  std::uint64_t begin_;
};

// Python's part for what torch.compile traces: gives (file, function, line, module path or None), or None. Held.
void set_traced_place(PyObject* function) noexcept;

// From now on each call is recorded with its module, and its line where that is wanted. A cast that torch makes within
// its operation is taken to cost so many nanoseconds, besides those for its values.
void begin(Detail detail, double nanoseconds_a_cast);
void stop() noexcept;

}  // namespace habana_mp::watch

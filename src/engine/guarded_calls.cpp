// The answers while a guard checks calls. A call that is not checked costs a decrement.
#include <algorithm>
#include <cstdint>
#include <new>
#include <unordered_map>
#include <utility>

#include "engine/guard.hpp"
#include "engine/observer.hpp"
#include "errors.hpp"
#include "host/modes.hpp"
#include "host/tensors.hpp"
#include "watch/finite.hpp"

namespace habana_mp::engine {

using watch::Finite;
using watch::Magnitude;

namespace {

// Numbers beside those of Finite.
constexpr int not_checked = -1;
constexpr int enough_checked = -1;

constexpr std::uint64_t first_random = 0x9E3779B97F4A7C15U;

struct Guard {
  Owned found;
  double share = 0;
  std::uint64_t left = 0;  // calls until `found` hears that so many were checked; 0 if it does not
  std::uint64_t random = first_random;
  std::unordered_map<std::string, float> largest;
};
NeverDestroyed<Guard> guard;
Answers unguarded;
std::int64_t calls_left = 0;  // until a call is checked; the GIL protects it
thread_local bool is_suspended = false;

bool checks_all() noexcept { return guard->share >= 1; }

// At random distances, since a program repeats the same calls.
void choose_next() noexcept {
  if (checks_all()) {
    calls_left = 1;
    return;
  }
  std::uint64_t& random = guard->random;
  random ^= random << 13U;
  random ^= random >> 7U;
  random ^= random << 17U;
  const double part = static_cast<double>(random >> 11U) / static_cast<double>(std::uint64_t{1} << 53U);
  calls_left = 1 + static_cast<std::int64_t>(part * (2 / guard->share - 1));
}

// Visits the tensors among these values, also those in lists and tuples.
template <typename Visit>
void for_each_tensor(PyObject* const* values, Py_ssize_t count, const Visit& visit, bool may_nest = true) {
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (host::is_tensor_base(values[i])) {
      visit(values[i]);
    } else if (may_nest && (PyTuple_Check(values[i]) || PyList_Check(values[i]))) {
      for_each_tensor(PySequence_Fast_ITEMS(values[i]), PySequence_Fast_GET_SIZE(values[i]), visit, false);
    }
  }
}

Finite worst_of(PyObject* const* values, Py_ssize_t count) noexcept {
  Finite worst = Finite::numbers;
  for_each_tensor(values, count,
                  [&](PyObject* tensor) { worst = std::max(worst, watch::magnitude_of(tensor, checks_all()).state); });
  return worst;
}

void note_largest(const Target& target, float largest) {
  float& known = guard->largest[target.operation];
  known = std::max(known, largest);
}

Finite worst_of_result(const Target& target, PyObject* result) {
  Finite worst = Finite::numbers;
  for_each_tensor(&result, 1, [&](PyObject* tensor) {
    const Magnitude one = watch::magnitude_of(tensor, checks_all());
    worst = std::max(worst, one.state);
    if (one.kind == Kind::f16 && one.state == Finite::numbers) note_largest(target, one.largest);
  });
  return worst;
}

// True if the call may overwrite an argument.
bool may_overwrite(const Target& target, const Arguments& arguments) {
  static PyObject* const out = interned("out");
  const std::string& name = target.operation;
  const bool is_in_place = name.ends_with('_') && !name.ends_with("__");
  return is_in_place || name.starts_with("__i") || target.kind == host::CallableKind::assignment ||
         holds(arguments.keywords, out);
}

// Returns false with an exception set if the guard raises.
bool tell(const Target& target, const Arguments& arguments, PyObject* result, int state, int before) {
  const Owned found = Owned::borrowed_or_null(guard->found.get());
  if (!found) return true;
  const UnguardedBlock block;
  const Owned positional = positional_of(arguments);
  const Owned keywords = keywords_of(arguments);
  if (!positional || !keywords) return false;
  return static_cast<bool>(
      Owned(PyObject_CallFunction(found.get(), "OsOOOii", target.object.get(), target.operation.c_str(),
                                  positional.get(), keywords.get(), result, state, before)));
}

// Returns the result of `make`, which makes the call.
template <typename Make>
[[gnu::noinline]] PyObject* checked_call(Target& target, const Arguments& arguments, const Make& make) {
  choose_next();
  if (is_suspended || host::is_intercepted()) return make();
  const bool overwrites = may_overwrite(target, arguments);
  const int before = overwrites ? static_cast<int>(worst_of(arguments.values, arguments.count())) : not_checked;
  Owned result(make());
  if (!result) return nullptr;
  PyObject* const written = target.kind == host::CallableKind::assignment ? arguments.values[0] : result.get();
  const Finite state = worst_of_result(target, written);
  if (guard->left != 0 && --guard->left == 0 && !tell(target, arguments, written, enough_checked, before)) {
    return nullptr;
  }
  if (state == Finite::numbers && !checks_all()) return result.release();
  return tell(target, arguments, written, static_cast<int>(state), before) ? result.release() : nullptr;
}

PyObject* answer_by_rule_guarded(Target& target, const Rule& rule, const Arguments& arguments) {
  if (--calls_left > 0) [[likely]]
    return unguarded.by_rule(target, rule, arguments);
  return checked_call(target, arguments, [&] { return unguarded.by_rule(target, rule, arguments); });
}

template <auto answer>
PyObject* answer_guarded(Target& target, const Arguments& arguments) {
  if (--calls_left > 0) [[likely]]
    return (unguarded.*answer)(target, arguments);
  return checked_call(target, arguments, [&] { return (unguarded.*answer)(target, arguments); });
}

constexpr Answers answers_guarded{&answer_by_rule_guarded, &answer_guarded<&Answers::in_protected_region>,
                                  &answer_guarded<&Answers::under_disable_casts>, &answer_guarded<&Answers::unlisted>};

}  // namespace

void set_answers(const Answers& wanted) noexcept {
  unguarded = wanted;
  set_answers_behind_observer(guard->found ? answers_guarded : wanted);
}

void guard_calls(PyObject* found, double share, std::uint64_t most) noexcept {
  const Owned former = std::exchange(guard->found, Owned::borrowed_or_null(found));
  guard->share = share;
  guard->left = most;
  guard->random = first_random;  // the same calls are checked in each run of a program
  if (found != nullptr) choose_next();
  set_answers(unguarded);
}

UnguardedBlock::UnguardedBlock() noexcept : former_(std::exchange(is_suspended, true)) {}
UnguardedBlock::~UnguardedBlock() { is_suspended = former_; }

void for_each_largest(const std::function<void(const std::string&, float)>& visit) {
  for (const auto& [operation, largest] : guard->largest) visit(operation, largest);
}

void forget_largest() noexcept { guard->largest.clear(); }

}  // namespace habana_mp::engine

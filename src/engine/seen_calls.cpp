#include "engine/seen_calls.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <random>
#include <utility>

#include "engine/facts.hpp"
#include "engine/originals.hpp"
#include "engine/region.hpp"
#include "engine/reporting.hpp"
#include "errors.hpp"
#include "host/modes.hpp"
#include "host/tensors.hpp"
#include "listeners.hpp"
#include "tensor/cast.hpp"
#include "watch/calls.hpp"
#include "watch/modules.hpp"
#include "watch/values.hpp"
#include "weights/cache.hpp"

namespace habana_mp::engine {

using watch::Finite;
using watch::Magnitude;

namespace {

thread_local bool is_unseen = false;

// ---- the watch ------------------------------------------------------------------------------------------------------

bool is_watched = false;

// Returns the result of `make`, which makes the call.
template <typename Make>
PyObject* watched(Target& target, const Arguments& arguments, const Make& make) {
  const auto call = std::make_unique<watch::Call>(&target, arguments.values, arguments.count());
  PyObject* result = make(*call);
  call->ends(arguments.values, arguments.count(), result);
  return result;
}

PyObject* watched_as_written(Target& target, const Arguments& arguments, Decision decision) {
  return watched(target, arguments, [&](const watch::Call&) {
    PyObject* result = call_original(target, arguments);
    count_unlogged(target, decision);
    return result;
  });
}

PyObject* answer_by_rule_watched(Target& target, const Rule& rule, const Arguments& arguments) {
  return watched(target, arguments, [&](watch::Call& call) {
    const auto refused = weights::counts.refused;
    PyObject* result = answer_by_rule(target, rule, arguments);
    for (std::size_t why = 0; why < refused.size(); ++why) {
      if (weights::counts.refused[why] != refused[why]) call.weight_was_refused(why);
    }
    return result;
  });
}

PyObject* answer_protected_watched(Target& target, const Arguments& arguments) {
  return watched(target, arguments, [&](const watch::Call&) { return answer_protected(target, arguments); });
}

// Records a call of an operation without a rule if its first floating tensor is in a lower precision: its result then
// is too, unless the call gives it a dtype. If that is a lower one, the call is recorded too.
PyObject* answer_unlisted_watched(Target& target, const Arguments& arguments) {
  Kind kind = Kind::other;
  is_any_tensor(arguments, [&kind](PyObject*, Kind of_value) {
    if (is_floating(of_value)) kind = of_value;
    return is_floating(of_value);
  });
  const Reading reading(arguments.count());
  const Facts facts{{target, no_rule, arguments, reading}};
  const Precision given = given_precision(arguments);
  const bool is_recorded =
      is_lower(kind) || (is_floating(kind) && (given == Precision::bf16 || given == Precision::fp16));
  if (!is_recorded || rules::is_left_alone(facts)) {
    return watch::seen_outside(target.operation, arguments.values, arguments.count(), call_original(target, arguments));
  }
  if (given != Precision::unchanged) return watched_as_written(target, arguments, {given, Reason::given_dtype});
  const bool is_listed = thread_state.lists_suspended && rule_of_lists(target).action != Action::none;
  const Reason reason = is_listed ? Reason::suspended : Reason::unlisted;
  return watched_as_written(target, arguments, {rules::precision_of(kind), reason});
}

// Counts a call under disable_casts. Without the watch such calls are not counted, and so cost nothing.
PyObject* answer_disabled_watched(Target& target, const Arguments& arguments) {
  const bool has_lists = policy_is_installed || thread_state.region != nullptr;
  const bool has_rule =
      rule_of_lists(target).action != Action::none || (has_lists && target.unlisted->action != Action::none);
  if (!has_rule) return call_original(target, arguments);
  const Reason reason = function_without_casts() == nullptr ? Reason::disabled : Reason::inside;
  return watched_as_written(target, arguments, {given_precision(arguments), reason});
}

Owned cast_timed(PyObject* tensor, Kind from, Kind to, tensor::CastResult& seen) {
  const watch::CastTime time;
  return tensor::untimed_makers.cast(tensor, from, to, seen);
}

void convert_timed(const void* source, Kind from, void* target, Kind to, std::int64_t count) {
  const watch::CastTime time;
  tensor::untimed_makers.convert(source, from, target, to, count);
}

// ---- the guard ------------------------------------------------------------------------------------------------------

constexpr int not_checked = -1;  // beside the numbers of Finite

struct Guard {  // NOLINT(bugprone-random-generator-seed): the same calls are checked in each run of a program
  Owned found;
  double share = 0;
  std::minstd_rand random;
  std::unordered_map<std::string, float> largest;
};
NeverDestroyed<Guard> guard;
constexpr std::int64_t never = std::numeric_limits<std::int64_t>::max();
std::int64_t calls_left = never;  // until a call is checked; the GIL protects it

bool checks_all() noexcept { return guard->share >= 1; }

// At random distances, since a program repeats the same calls.
void choose_next() noexcept {
  std::uniform_real_distribution<double> distance(1, 2 / guard->share);
  calls_left = static_cast<std::int64_t>(distance(guard->random));
}

Finite worst_of(PyObject* const* values, Py_ssize_t count) {
  Finite worst = Finite::numbers;
  host::for_each_tensor(values, count, [&](PyObject* tensor) {
    worst = std::max(worst, watch::magnitude_of(tensor, checks_all()).state);
  });
  return worst;
}

Finite worst_of_result(const Target& target, PyObject* result) {
  Finite worst = Finite::numbers;
  host::for_each_tensor(&result, 1, [&](PyObject* tensor) {
    const Magnitude one = watch::magnitude_of(tensor, checks_all());
    worst = std::max(worst, one.state);
    if (one.kind != Kind::f16 || one.state != Finite::numbers) return;
    float& known = guard->largest[target.operation];
    known = std::max(known, one.largest);
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
  const UnseenBlock block;
  const Owned positional = positional_of(arguments);
  const Owned keywords = keywords_of(arguments);
  if (!positional || !keywords) return false;
  return static_cast<bool>(
      Owned(PyObject_CallFunction(found.get(), "OsOOOii", target.object.get(), target.operation.c_str(),
                                  positional.get(), keywords.get(), result, state, before)));
}

// Returns the result of `make`, which makes the call.
template <typename Make>
[[gnu::noinline]] PyObject* checked(Target& target, const Arguments& arguments, const Make& make) {
  choose_next();
  if (host::is_intercepted()) return make();
  const bool overwrites = may_overwrite(target, arguments);
  const int before = overwrites ? static_cast<int>(worst_of(arguments.values, arguments.count())) : not_checked;
  Owned result(make());
  if (!result) return nullptr;
  PyObject* const written = target.kind == host::CallableKind::assignment ? arguments.values[0] : result.get();
  const Finite state = worst_of_result(target, written);
  if (state == Finite::numbers && !checks_all()) return result.release();
  return tell(target, arguments, written, static_cast<int>(state), before) ? result.release() : nullptr;
}

// ---- the observer ---------------------------------------------------------------------------------------------------

NeverDestroyed<Owned> observing;

// The call for which the observer runs.
struct ObservedCall {
  const Target& target;
  std::optional<Decision> decision;
  std::function<PyObject*()> make;
};
thread_local ObservedCall* current_call = nullptr;  // null outside of the observer

// `decision`: that of calls that are not reported.
template <typename Make>
[[gnu::noinline]] PyObject* observed(Target& target, const Arguments& arguments, std::optional<Decision> decision,
                                     const Make& make) {
  const Owned observer = Owned::borrowed(observing->get());
  const bool is_users = target.kind == host::CallableKind::user_function;  // its calls go through the observer
  if (is_users || current_call != nullptr || host::is_intercepted()) return make();
  const Owned positional = positional_of(arguments);
  const Owned keywords = keywords_of(arguments);
  if (!positional || !keywords) return nullptr;
  ObservedCall call{target, decision, std::cref(make)};
  current_call = &call;
  PyObject* result = PyObject_CallFunction(observer.get(), "OsOO", target.object.get(), target.operation.c_str(),
                                           positional.get(), keywords.get());
  current_call = nullptr;
  return result;
}

// ---- weights that are used ------------------------------------------------------------------------------------------

int noticing_calls = 0;  // the GIL protects it

void note_weights(const Target& target, const Arguments& arguments) {
  const watch::ModuleCall* around = watch::innermost_module_call();
  while (around != nullptr && !around->uses) around = around->outer();
  if (around == nullptr) return;
  host::for_each_tensor(arguments.values, arguments.count(), [&](PyObject* tensor) {
    const bool may_be_view = host::is_exact_tensor(tensor) && !host::function_mode_is_on();
    const Owned base(may_be_view ? PyObject_GetAttrString(tensor, "_base") : nullptr);  // of `weight.t()`
    PyObject* const weight = base ? base.get() : tensor;
    if (!host::is_parameter(weight)) return clear_error();
    const Owned modules = watch::objects_of(watch::running_module().get());
    const RuleSet* const rules = thread_state.region;
    const unsigned number = rules != nullptr && rules->is_in_modules ? rules->number : 0;
    const Owned use(modules ? Py_BuildValue("sOOI", target.operation.c_str(), weight, modules.get(), number) : nullptr);
    if (!use || PyList_Append(around->uses.get(), use.get()) != 0) clear_error();
  });
}

// ---- the answers ----------------------------------------------------------------------------------------------------

bool is_only_guarded = false;

// True for a call that is not seen: the guard alone is on, and does not check this one.
inline bool is_passed() noexcept { return is_only_guarded && !is_unseen && --calls_left > 0; }

template <typename Make>
PyObject* seen(Target& target, const Arguments& arguments, std::optional<Decision> decision, const Make& make) {
  if (is_unseen) return call_original(target, arguments);
  if (noticing_calls != 0 && !casts_are_disabled()) note_weights(target, arguments);
  if (is_only_guarded) return checked(target, arguments, make);
  const auto check = [&] { return --calls_left > 0 ? make() : checked(target, arguments, make); };
  return *observing ? observed(target, arguments, decision, check) : check();
}

PyObject* answer_by_rule_seen(Target& target, const Rule& rule, const Arguments& arguments) {
  if (is_passed()) [[likely]]
    return answer_by_rule(target, rule, arguments);
  // Hooked for those that look at calls alone: the rule is that of a region that `restore` has ended.
  if (target.is_observed && !target.in_policy && !target.in_regions) return answers.unlisted(target, arguments);
  return seen(target, arguments, std::nullopt, [&] {
    return is_watched ? answer_by_rule_watched(target, rule, arguments) : answer_by_rule(target, rule, arguments);
  });
}

using Answer = PyObject* (*)(Target&, const Arguments&);

template <Answer plain, Answer watched, Reason reason>
PyObject* answer_seen(Target& target, const Arguments& arguments) {
  if (is_passed()) [[likely]]
    return plain(target, arguments);
  return seen(target, arguments, Decision{given_precision(arguments), reason},
              [&] { return is_watched ? watched(target, arguments) : plain(target, arguments); });
}

constexpr Answers plain_answers{&answer_by_rule, &answer_protected, &call_original, &call_original};
constexpr Answers seen_answers{&answer_by_rule_seen,
                               &answer_seen<&answer_protected, &answer_protected_watched, Reason::autocast_off>,
                               &answer_seen<&call_original, &answer_disabled_watched, Reason::disabled>,
                               &answer_seen<&call_original, &answer_unlisted_watched, Reason::unlisted>};

void choose_answers() noexcept {
  const bool is_guarded = static_cast<bool>(guard->found);
  const bool is_seen = is_watched || *observing || noticing_calls != 0;
  is_only_guarded = is_guarded && !is_seen;
  answers = is_seen || is_guarded ? seen_answers : plain_answers;
}

}  // namespace

Answers answers = plain_answers;

void watch_calls(bool watched) noexcept {
  is_watched = watched;
  tensor::makers = watched ? tensor::Makers{&cast_timed, &convert_timed} : tensor::untimed_makers;
  choose_answers();
}

void guard_calls(PyObject* found, double share) noexcept {
  const Owned former = std::exchange(guard->found, Owned::borrowed_or_null(found));
  guard->share = share;
  guard->random.seed();
  calls_left = never;
  if (found != nullptr) choose_next();
  choose_answers();
}

std::unordered_map<std::string, float>& largest_checked() noexcept { return guard->largest; }

Owned set_observer(PyObject* observer) noexcept {
  Owned former = std::exchange(*observing, Owned::borrowed_or_null(observer));
  set_listening(Listener::observer, observer != nullptr);
  choose_answers();
  return former;
}

PyObject* make_observed_call() {
  if (current_call != nullptr) return current_call->make();
  PyErr_SetString(PyExc_RuntimeError, "no observed call runs in this thread");
  return nullptr;
}

std::optional<Decision> decision_of_observed_call() noexcept {
  return current_call == nullptr ? std::nullopt : current_call->decision;
}

void note_decision(const Target& target, Decision decision) noexcept {
  if (current_call != nullptr && &current_call->target == &target) current_call->decision = decision;
}

void notice_weights(bool begins) noexcept {
  noticing_calls += begins ? 1 : -1;
  choose_answers();
}

UnseenBlock::UnseenBlock() noexcept : former_(std::exchange(is_unseen, true)) {}
UnseenBlock::~UnseenBlock() { is_unseen = former_; }

}  // namespace habana_mp::engine

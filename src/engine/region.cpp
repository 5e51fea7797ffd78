#define PY_SSIZE_T_CLEAN
#include "engine/region.hpp"

#include <Python.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <set>
#include <utility>

#include "errors.hpp"
#include "host/thread_flag.hpp"
#include "log/log.hpp"
#include "owned.hpp"

namespace habana_mp::engine {

namespace {

NeverDestroyed<std::deque<RuleSet>> sets;  // its elements never move

RuleSet* of_modules = nullptr;

struct Entrance {
  const void* owner;
  CastState before;
  std::uint32_t installation;
  PyObject* inside = nullptr;  // the name of a function that runs without casts; the owner holds it
};
// The open regions of this thread, the innermost last; null until their first use in this thread. A call of a module
// reads it six times, so it has a fixed offset.
#if defined(__GNUC__)
__attribute__((tls_model("initial-exec")))
#endif
constinit thread_local std::vector<Entrance>* known_entrances = nullptr;

std::vector<Entrance>& make_entrances() noexcept {
  static thread_local std::vector<Entrance> open;
  known_entrances = &open;
  return open;
}

std::vector<Entrance>& entrances() noexcept { return known_entrances != nullptr ? *known_entrances : make_entrances(); }

// The meaning of a region dtype: the lists of a region, or convert's if `set` is null, and whether they are suspended.
struct MeaningOfDtype {
  const RuleSet* set = nullptr;
  bool lists_suspended = false;
  bool until_tracking = false;
};
// By number. Number 0 stands for convert's lists while they apply.
std::vector<MeaningOfDtype>& meanings_of_dtypes() {
  static auto* const all = new std::vector<MeaningOfDtype>(1);
  return *all;
}

RegionDevice region_device{};
// These read and set the region dtype without Python, if torch allows it.
host::ThreadFlag region_device_flag;
host::AutocastFunctions region_autocast;
std::vector<std::int8_t> dtype_numbers;  // the c10::ScalarType of each region dtype; empty if unknown
// True while this file itself sets the region dtype.
thread_local bool setting_region_device = false;

void call_with_device(PyObject* function, PyObject* value) noexcept {
  PyObject* arguments[] = {region_device.device_type, value};
  const Owned done(PyObject_Vectorcall(function, arguments, 2, nullptr));
  if (!done) print_error(function);
}

void switch_region_device(bool on) noexcept {
  if (region_device_flag.is_known()) {
    region_device_flag.turn(on);
  } else {
    call_with_device(region_device.set_autocast_enabled, on ? Py_True : Py_False);
  }
}

void write_region_dtype(std::uint64_t to) noexcept {
  if (region_device.dtypes == nullptr) return;
  // Dynamo ignores the dtype while autocast is off.
  if (!dtype_numbers.empty()) {
    if (region_device_flag.is_on() != (to != 0)) switch_region_device(to != 0);
    region_autocast.set_dtype(region_device.device, dtype_numbers[static_cast<std::size_t>(to)]);
    return;
  }
  setting_region_device = true;
  switch_region_device(to != 0);
  call_with_device(region_device.set_autocast_dtype,
                   PyTuple_GET_ITEM(region_device.dtypes, static_cast<Py_ssize_t>(to)));
  setting_region_device = false;
}

// True if the two decide the same, perhaps by other lines.
bool decide_alike(const Rule* one, const Rule* other) {
  if (one == other) return true;
  if (one == nullptr || other == nullptr || !decide_alike(one->rule_for_lowered, other->rule_for_lowered)) return false;
  Rule same = *one;
  same.line = other->line;
  same.rule_for_lowered = other->rule_for_lowered;
  return same == *other;
}
bool decide_alike(const RuleSet& one, const RuleSet& other) {
  return one.is_in_modules == other.is_in_modules && one.base == other.base && one.device == other.device &&
         one.name == other.name && one.after_tracked_cast == other.after_tracked_cast &&
         std::ranges::equal(one.rules, other.rules, [](const Rule* a, const Rule* b) { return decide_alike(a, b); });
}

// Returns the number of the region dtype that shows this set. A set without one is shown as no region; torch.compile
// then compiles nothing (habana_mp/patches/torch/rules_in_modules.py).
std::uint64_t mark_of(const RuleSet* set) noexcept { return set == nullptr ? 0 : set->mark; }

// Returns the set's own mark if its suspension has none. The region dtype then cannot show that the lists are
// suspended.
std::uint64_t mark_of(const RuleSet* set, bool lists_suspended, bool until_tracking) noexcept {
  if (!lists_suspended) return mark_of(set);
  const std::vector<MeaningOfDtype>& all = meanings_of_dtypes();
  for (std::size_t number = 0; number < all.size(); ++number) {
    const MeaningOfDtype& meaning = all[number];
    if (meaning.lists_suspended && meaning.until_tracking == until_tracking && mark_of(meaning.set) == mark_of(set))
      return number;
  }
  return mark_of(set);
}

// Returns the number of a free region dtype. If none is left returns 0, for a region with a Python exception set: rules
// in modules leave some for regions, and do without.
std::uint16_t free_number(bool for_region) {
  constexpr std::size_t left_for_regions = 4;
  std::vector<MeaningOfDtype>& all = meanings_of_dtypes();
  const auto free = std::find_if(all.begin() + 1, all.end(),
                                 [](const MeaningOfDtype& one) { return one.set == nullptr && !one.lists_suspended; });
  if (free != all.end()) return static_cast<std::uint16_t>(free - all.begin());
  const std::size_t wanted = all.size() + (for_region ? 0 : left_for_regions);
  if (region_device.dtypes == nullptr || wanted < static_cast<std::size_t>(PyTuple_GET_SIZE(region_device.dtypes))) {
    all.emplace_back();
    return static_cast<std::uint16_t>(all.size() - 1);
  }
  if (for_region) {
    PyErr_Format(
        PyExc_RuntimeError,
        "habana_mp: a process can have %zu different regions of `hmp.autocast`, and has them. Those with the same "
        "lists, precision and device type count once. Use fewer lists, or `hmp.convert`, which can be called with any "
        "number of them. (Code that torch.compile or "
        "`hmp.op_wrap` runs with the lists silent is one more in each region that it is called in.)",
        all.size() - 1);
  }
  return 0;
}

// Gives the set the mark of one that decides the same, or a free one if one is left.
void mark(RuleSet& set) {
  const auto alike =
      std::ranges::find_if(*sets, [&](const RuleSet& one) { return one.mark != 0 && decide_alike(one, set); });
  if (alike != sets->end()) {
    set.mark = alike->mark;
    return;
  }
  set.mark = free_number(!set.is_in_modules);
  if (set.mark != 0) meanings_of_dtypes()[set.mark] = {&set};
}

}  // namespace

RuleSet* intern_rule_set(RuleSet&& content) {
  const auto known = std::ranges::find_if(
      *sets, [&](const RuleSet& one) { return one.rules == content.rules && decide_alike(one, content); });
  RuleSet* set = known != sets->end() ? &*known : nullptr;
  if (set == nullptr) {
    set = &sets->emplace_back(std::move(content));
    set->number = static_cast<std::uint32_t>(sets->size());
    if (set->after_tracked_cast != nullptr) immortal(set->after_tracked_cast);  // the set is never freed either
  } else {
    set->covered = std::move(content.covered);
  }
  if (set->mark == 0) mark(*set);
  return set->mark != 0 || set->is_in_modules ? set : nullptr;
}

RuleSet* rule_set_of_modules() {
  if (of_modules != nullptr) return of_modules;
  RuleSet content;
  content.rules.fill(&no_rule);
  content.device = RuleSet::Device::any;
  return of_modules = intern_rule_set(std::move(content));
}

bool region_casts() noexcept { return thread_state.region != nullptr && thread_state.region->casts; }

RuleSet* known_rule_set_of_modules() noexcept { return of_modules; }

bool is_of_modules(const RuleSet* set) noexcept { return set != nullptr && base_of(set) == of_modules; }

void free_marks_in_modules() noexcept {
  for (MeaningOfDtype& one : meanings_of_dtypes()) {
    if (one.set != nullptr && one.set->is_in_modules) one = {};
  }
  for (RuleSet& set : *sets) {
    if (set.is_in_modules) set.mark = 0;
  }
}

RuleSet* rule_set(std::uint64_t number) noexcept {
  return number == 0 || number > sets->size() ? nullptr : &(*sets)[number - 1];
}

std::optional<std::uint64_t> number_of_suspension(bool until_tracking) {
  const RuleSet* set = thread_state.region;
  const std::uint64_t known = mark_of(set, true, until_tracking);
  if (known != mark_of(set)) return known;
  const std::uint16_t number = free_number(true);
  if (number == 0) return std::nullopt;
  meanings_of_dtypes()[number] = {set, true, until_tracking};
  return number;
}

CastState current_state() noexcept {
  const ThreadState& state = thread_state;
  return {casts_are_disabled(), state.disabled_by_region, state.lists_suspended, state.region,
          state.suspended_until_tracking};
}

CastState exchange_state(const CastState& wanted) noexcept {
  ThreadState& state = thread_state;
  const CastState before = current_state();
  const bool shows_the_same = wanted.region == before.region && wanted.lists_suspended == before.lists_suspended &&
                              wanted.suspended_until_tracking == before.suspended_until_tracking;
  if (!shows_the_same) {
    write_region_dtype(mark_of(wanted.region, wanted.lists_suspended, wanted.suspended_until_tracking));
  }
  state.region = wanted.region;
  state.lists_suspended = wanted.lists_suspended;
  state.suspended_until_tracking = wanted.suspended_until_tracking;
  if (wanted.disabled != before.disabled) set_flag(wanted.disabled);
  state.disabled_by_region = wanted.by_region;
  return before;
}

std::uint64_t pack(const CastState& state) noexcept {
  const std::uint64_t number = state.region == nullptr ? 0 : state.region->number;
  return (number << 4U) | (state.suspended_until_tracking ? 8U : 0U) | (state.lists_suspended ? 4U : 0U) |
         (state.by_region ? 2U : 0U) | (state.disabled ? 1U : 0U);
}

CastState unpack(std::uint64_t packed) noexcept {
  return {(packed & 1U) != 0, (packed & 2U) != 0, (packed & 4U) != 0, rule_set(packed >> 4U), (packed & 8U) != 0};
}

void enter_region(const void* owner, const RuleSet* set, PyObject* inside) {
  const ThreadState& state = thread_state;
  CastState wanted{false, false, false, set};
  // A region without casts keeps the lists around it, and their suspension, and disables casts.
  if (set == nullptr) wanted = {true, false, state.lists_suspended, state.region, state.suspended_until_tracking};
  if (set != nullptr && log::is_active()) log::event("entering region ", set->name);
  enter_state(owner, wanted);
  entrances().back().inside = inside;
}

PyObject* function_without_casts() noexcept {
  const std::vector<Entrance>& open = entrances();
  const auto found = std::find_if(open.rbegin(), open.rend(), [](const Entrance& one) { return !one.before.disabled; });
  return found == open.rend() ? nullptr : found->inside;
}

void prepare_region() {
  std::vector<Entrance>& open = entrances();
  if (open.size() == open.capacity()) open.reserve(std::max<std::size_t>(8, 2 * open.size()));
}

void enter_state(const void* owner, const CastState& state) {
  prepare_region();
  entrances().push_back({owner, {}, installation_number()});
  entrances().back().before = exchange_state(state);
}

bool has_begun_region(const void* owner) noexcept {
  const std::vector<Entrance>& open = entrances();
  return std::any_of(open.begin(), open.end(), [=](const Entrance& one) { return one.owner == owner; });
}

bool leave_region(const void* owner) noexcept {
  std::vector<Entrance>& open = entrances();
  const auto found = std::find_if(open.rbegin(), open.rend(), [=](const Entrance& one) { return one.owner == owner; });
  if (found == open.rend()) return false;
  CastState before = found->before;
  // A restore in the meantime has forgotten torch's regions and reset the flag that they had set.
  if (before.by_region && found->installation != installation_number()) before.disabled = before.by_region = false;
  if (found != open.rbegin()) {
    std::prev(found)->before = before;
    open.erase(std::next(found).base());
    return true;
  }
  open.pop_back();
  const RuleSet* left = thread_state.region;
  exchange_state(before);
  if (left != nullptr && left != before.region && log::is_active()) {
    log::event("leaving region ", left->name);
  }
  return true;
}

void set_mark(const RegionDevice& given) {
  if (region_device.dtypes != nullptr) return;
  region_device = {immortal(given.device_type), given.device, immortal(given.dtypes),
                   immortal(given.set_autocast_enabled), immortal(given.set_autocast_dtype)};
  if (given.device < 0) return;
  const host::ThreadFlag flag = host::autocast_flag(given.device);
  const host::AutocastFunctions autocast = host::autocast_functions();
  if (!flag.is_known() || !autocast.are_known()) return;
  const std::int8_t before = autocast.dtype(given.device);
  std::vector<std::int8_t> numbers;
  setting_region_device = true;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given.dtypes); ++i) {
    call_with_device(given.set_autocast_dtype, PyTuple_GET_ITEM(given.dtypes, i));
    numbers.push_back(autocast.dtype(given.device));
  }
  setting_region_device = false;
  autocast.set_dtype(given.device, before);
  // Otherwise the C++ function does not tell what the Python function sets.
  if (std::set(numbers.begin(), numbers.end()).size() != numbers.size()) return;
  region_device_flag = flag;
  region_autocast = autocast;
  dtype_numbers = std::move(numbers);
}

bool is_mark(PyObject* device_type) noexcept {
  return region_device.device_type != nullptr && PyUnicode_Check(device_type) != 0 &&
         PyUnicode_Compare(region_device.device_type, device_type) == 0;
}

void region_dtype_was_set(PyObject* dtype) noexcept {
  if (setting_region_device) return;
  for (Py_ssize_t number = 0; number < PyTuple_GET_SIZE(region_device.dtypes); ++number) {
    if (PyTuple_GET_ITEM(region_device.dtypes, number) != dtype) continue;
    const bool is_known = static_cast<std::size_t>(number) < meanings_of_dtypes().size();
    const MeaningOfDtype meaning = is_known ? meanings_of_dtypes()[static_cast<std::size_t>(number)] : MeaningOfDtype{};
    // The end of a region restores the set itself; the dtype shows one that decides the same.
    if (mark_of(thread_state.region) != mark_of(meaning.set)) thread_state.region = meaning.set;
    thread_state.lists_suspended = meaning.lists_suspended;
    thread_state.suspended_until_tracking = meaning.until_tracking;
    CastState& entering = thread_state.entering = current_state();
    // A region of the user turns casts on. Rules in a module, and suspended lists, leave them as they are.
    const bool is_users = meaning.set != nullptr && !meaning.set->is_in_modules && !is_of_modules(meaning.set);
    if (is_users && !meaning.lists_suspended) entering.disabled = entering.by_region = false;
    // torch.autocast has just set the flag according to its own `enabled`.
    switch_region_device(number != 0);
    return;
  }
}

}  // namespace habana_mp::engine

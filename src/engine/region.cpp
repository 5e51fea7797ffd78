#define PY_SSIZE_T_CLEAN
#include "engine/region.hpp"

#include <Python.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "log/log.hpp"

namespace habana_mp::engine {

namespace {

std::deque<RuleSet>& sets() {
  static std::deque<RuleSet> all;  // its elements never move
  return all;
}

struct Entrance {
  const void* owner;
  CastState before;
  std::uint32_t installation;
};
// By thread, the innermost last.
std::vector<Entrance>& entrances() {
  static thread_local std::vector<Entrance> open;
  return open;
}

Mark mark{};
// Set while the mark is written by ourselves.
thread_local bool marking = false;

void call_with_device(PyObject* function, PyObject* value) noexcept {
  PyObject* arguments[] = {mark.device_type, value};
  PyObject* done = PyObject_Vectorcall(function, arguments, 2, nullptr);
  if (done == nullptr) PyErr_WriteUnraisable(function);
  Py_XDECREF(done);
}

// With autocast off Dynamo does not look at the dtype.
void switch_mark(bool was_on, bool is_on) noexcept {
  if (was_on != is_on) call_with_device(mark.set_autocast_enabled, is_on ? Py_True : Py_False);
}

void write_mark(std::uint64_t from, std::uint64_t to) noexcept {
  if (mark.dtypes == nullptr) return;
  marking = true;
  const Region entering = thread_state.entering;  // the calls are watched
  switch_mark(from != 0, to != 0);
  call_with_device(mark.set_autocast_dtype, PyTuple_GET_ITEM(mark.dtypes, static_cast<Py_ssize_t>(to)));
  thread_state.entering = entering;
  marking = false;
}

std::uint64_t number_of(const RuleSet* set) { return set == nullptr ? 0 : set->number; }

}  // namespace

RuleSet* intern_rule_set(RuleSet&& content) {
  for (RuleSet& known : sets()) {
    if (known.rules == content.rules && known.device == content.device && known.name == content.name &&
        known.after_recorded_cast == content.after_recorded_cast) {
      return &known;
    }
  }
  if (mark.dtypes != nullptr && sets().size() + 1 >= static_cast<std::size_t>(PyTuple_GET_SIZE(mark.dtypes))) {
    PyErr_Format(PyExc_RuntimeError, "habana_mp: a process can have %zu different regions, and has them",
                 sets().size());
    return nullptr;
  }
  content.number = static_cast<std::uint16_t>(sets().size() + 1);
  return &sets().emplace_back(std::move(content));
}

RuleSet* rule_set(std::uint64_t number) noexcept {
  return number == 0 || number > sets().size() ? nullptr : &sets()[static_cast<std::size_t>(number - 1)];
}

CastState current_state() noexcept {
  const ThreadState& state = thread_state;
  return {casts_are_disabled(), state.disabled_by_region, state.unlisted, state.region};
}

CastState exchange_state(const CastState& wanted) noexcept {
  ThreadState& state = thread_state;
  const CastState before = current_state();
  if (wanted.region != before.region) {
    write_mark(number_of(before.region), number_of(wanted.region));
    state.region = wanted.region;
  }
  if (wanted.disabled != before.disabled) set_flag(wanted.disabled);
  state.disabled_by_region = wanted.by_region;
  state.unlisted = wanted.unlisted;
  return before;
}

std::uint64_t pack(const CastState& state) noexcept {
  return (number_of(state.region) << 34U) | (static_cast<std::uint64_t>(state.unlisted) << 2U) |
         (state.by_region ? 2U : 0U) | (state.disabled ? 1U : 0U);
}

CastState unpack(std::uint64_t packed) noexcept {
  return {(packed & 1U) != 0, (packed & 2U) != 0, static_cast<std::uint32_t>(packed >> 2U), rule_set(packed >> 34U)};
}

void enter_region(const void* owner, const RuleSet* set) {
  const ThreadState& state = thread_state;
  CastState wanted{false, false, 0, set};
  // An island is where it is: under the same lists, with casts off.
  if (set == nullptr) wanted = {true, false, state.unlisted, state.region};
  if (set != nullptr && log::is_active()) log::event("entering region " + set->name);
  enter_state(owner, wanted);
}

void enter_state(const void* owner, const CastState& state) {
  entrances().push_back({owner, {}, installation_number()});
  entrances().back().before = exchange_state(state);
}

bool leave_region(const void* owner) noexcept {
  std::vector<Entrance>& open = entrances();
  const auto found = std::find_if(open.rbegin(), open.rend(), [=](const Entrance& one) { return one.owner == owner; });
  if (found == open.rend()) return false;
  CastState before = found->before;
  // A restore in between has forgotten torch's regions, and whatever they had set.
  if (before.by_region && found->installation != installation_number()) before.disabled = before.by_region = false;
  open.erase(std::next(found).base());
  const RuleSet* left = thread_state.region;
  exchange_state(before);
  if (left != nullptr && left != before.region && log::is_active()) {
    log::event("leaving region " + left->name);
  }
  return true;
}

void set_mark(const Mark& given) {
  if (mark.dtypes != nullptr) return;
  Py_INCREF(given.device_type);
  Py_INCREF(given.dtypes);
  Py_INCREF(given.set_autocast_enabled);
  Py_INCREF(given.set_autocast_dtype);
  mark = given;
}

bool is_mark(PyObject* device_type) noexcept {
  return mark.device_type != nullptr && PyUnicode_Check(device_type) != 0 &&
         PyUnicode_Compare(mark.device_type, device_type) == 0;
}

void mark_was_set(PyObject* dtype) noexcept {
  if (marking) return;
  for (Py_ssize_t number = 0; number < PyTuple_GET_SIZE(mark.dtypes); ++number) {
    if (PyTuple_GET_ITEM(mark.dtypes, number) != dtype) continue;
    thread_state.region = rule_set(static_cast<std::uint64_t>(number));
    // torch.autocast has just switched it to what it should be in its own eyes.
    call_with_device(mark.set_autocast_enabled, number != 0 ? Py_True : Py_False);
    return;
  }
}

}  // namespace habana_mp::engine

#include "engine/modules.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "engine/seen_calls.hpp"
#include "engine/state.hpp"
#include "errors.hpp"
#include "host/taps.hpp"
#include "host/tensors.hpp"
#include "listeners.hpp"
#include "tensor/cast.hpp"
#include "watch/records.hpp"

namespace habana_mp::engine {

// ---- what leaves a model ----

ModelResults model_results;

namespace {

NeverDestroyed<ResultSettings> settings;

// True if lists lower in a call of this module, and no region that the user has opened decides there.
bool is_lowered(PyObject* module) noexcept {
  const ThreadState& state = thread_state;
  if (casts_are_disabled() || state.lists_suspended) return false;
  if (lists_wait_for_a_module()) return begins_to_apply_lists(module);
  return policy_is_installed && base_of(state.region) == nullptr;
}

// True if an argument is such a tensor, or holds one.
bool hold_tensor_of(const Arguments& arguments, Kind lower, PyObject* holds) {
  for (Py_ssize_t i = 1; i < arguments.count(); ++i) {
    PyObject* const value = arguments.values[i];
    const Kind kind = host::kind_of(value);
    if (kind == lower) return true;
    if (kind != Kind::other && kind != Kind::sequence) continue;
    if (value == Py_None || PyLong_Check(value) || PyFloat_Check(value) || PyUnicode_Check(value)) continue;
    const Owned answer(PyObject_CallOneArg(holds, value));
    if (!answer) clear_error();
    if (answer.get() == Py_True) return true;
  }
  return false;
}

}  // namespace

ModelCall::ModelCall(const Arguments& arguments)
    : is_outermost_(settings->lower != Kind::other && !thread_state.in_model && is_lowered(arguments.values[0])) {
  if (!is_outermost_) return;
  convert_ = Owned::borrowed(settings->convert.get());
  const Kind lower = settings->lower;
  const Owned holds = Owned::borrowed(settings->holds.get());
  if (!hold_tensor_of(arguments, lower, holds.get())) lower_ = lower;
  thread_state.in_model = true;
  used_before_ = std::exchange(thread_state.used_lower_parameter, false);
}

ModelCall::~ModelCall() {
  if (!is_outermost_) return;
  thread_state.in_model = false;
  thread_state.used_lower_parameter = used_before_;
}

PyObject* ModelCall::leave(PyObject* result) const {
  if (result == nullptr || lower_ == Kind::other || thread_state.used_lower_parameter) return result;
  const Kind kind = host::kind_of(result);
  if (kind != lower_ && kind != Kind::sequence && kind != Kind::other) return result;
  if (result == Py_None) return result;
  const Owned held(result);
  if (kind != lower_) return PyObject_CallOneArg(convert_.get(), result);
  tensor::CastResult made;
  Owned left = tensor::cast(result, kind, Kind::f32, made);
  if (left) count_model_result(result, left.get());
  return left.release();
}

void count_model_result(PyObject* before, PyObject* after) {
  model_results.tensors += 1;
  model_results.bytes += tensor::bytes_as(Kind::f32, host::count_elements(after));
  if (listens(Listener::watch)) watch::pass_on_maker(before, after);
}

void note_lower_parameters(const Arguments& arguments) noexcept {
  host::for_each_tensor(arguments.values, arguments.count(), [](PyObject* tensor) {
    if (host::is_parameter(tensor) && is_lower(host::kind_of_tensor(tensor))) thread_state.used_lower_parameter = true;
  });
}

// ---- rules by module ----

namespace {

NeverDestroyed<Owned> known_resolver;
NeverDestroyed<Owned> known_judge;

// Asks Python. Returns null for the lists as they are; null with a Python exception set on failure.
const RuleSet* resolve(const watch::RunningModule* module, std::int64_t lists) {
  if (!*known_resolver) return nullptr;
  const Owned function = Owned::borrowed(known_resolver->get());
  const Owned objects = watch::objects_of(module);
  const Owned given(PyLong_FromLongLong(lists));
  if (!objects || !given) return nullptr;
  const Owned number(PyObject_CallFunctionObjArgs(function.get(), objects.get(), given.get(), nullptr));
  if (!number) return nullptr;
  const unsigned long long value = PyLong_AsUnsignedLongLong(number.get());
  return PyErr_Occurred() != nullptr || value == 0 ? nullptr : rule_set(value);
}

}  // namespace

std::optional<const RuleSet*> rules_in_module(PyObject* module) {
  const ThreadState& state = thread_state;
  if (state.lists_suspended) return state.region;
  watch::ModuleCall* const call = watch::innermost_module_call();
  const RuleSet* const around = begins_to_apply_lists(module) ? rule_set_of_modules() : base_of(state.region);
  if (call == nullptr || !call->module) return around;
  const bool is_outside = around == nullptr && lists_wait_for_a_module();
  const std::int64_t lists = is_outside ? -1 : around == nullptr || is_of_modules(around) ? 0 : around->number;
  watch::RunningModule& running = *call->module;
  auto found = std::ranges::find(running.rules, lists, &watch::FoundRules::lists);
  if (found == running.rules.end()) [[unlikely]] {
    const watch::FoundRules resolved{lists, resolve(&running, lists), running.around != nullptr};
    if (PyErr_Occurred() != nullptr) return std::nullopt;
    found = running.rules.insert(running.rules.end(), resolved);
  }
  if (!found->is_judged) call->unjudged = lists;
  return found->rules == nullptr ? around : found->rules;
}

bool judge_rules(watch::ModuleCall& call) {
  if (!call.unjudged || !*known_judge) return true;
  const Owned judge = Owned::borrowed(known_judge->get());
  const Owned objects = watch::objects_of(call.module.get());
  const Owned lists(PyLong_FromLongLong(*call.unjudged));
  PyObject* const uses = call.uses ? call.uses.get() : Py_None;
  if (!objects || !lists) return false;
  if (!Owned(PyObject_CallFunctionObjArgs(judge.get(), objects.get(), lists.get(), uses, nullptr))) return false;
  for (watch::FoundRules& one : call.module->rules) one.is_judged |= one.lists == *call.unjudged;
  return true;
}

// ---- the stub ----

namespace {

host::TappedFunction call_tap;
bool lists_wait_for_modules = false;
std::optional<std::vector<PyObject*>> modules;  // sorted; nullopt: any module
bool is_followed = false;

// Calls a module while these lists apply.
PyObject* call_under(const RuleSet* lists, PyObject* const* values, std::size_t flagged_count, PyObject* keywords) {
  CastState wanted = current_state();
  wanted.region = lists;
  enter_state(&call_tap, wanted);
  PyObject* result = call_tap.call(values, flagged_count, keywords);
  std::optional<HeldError> held;
  if (result == nullptr) held.emplace();
  leave_region(&call_tap);
  return result;
}

PyObject* call_where_lists_wait(PyObject* const* values, std::size_t flagged_count, PyObject* keywords) {
  if (!begins_to_apply_lists(values[0])) return call_tap.call(values, flagged_count, keywords);
  return call_under(rule_set_of_modules(), values, flagged_count, keywords);
}

// Calls a module under the rules that hold in it. The watch has opened the call.
PyObject* call_by_rules(PyObject* const* values, std::size_t flagged_count, PyObject* keywords) {
  const std::optional<const RuleSet*> rules = rules_in_module(values[0]);
  if (!rules) return nullptr;
  const auto call = [&] {
    return *rules == thread_state.region ? call_tap.call(values, flagged_count, keywords)
                                         : call_under(*rules, values, flagged_count, keywords);
  };
  watch::ModuleCall* const innermost = watch::innermost_module_call();
  if (innermost == nullptr || !innermost->unjudged) [[likely]]
    return call();
  innermost->uses = Owned(PyList_New(0));
  notice_weights(true);
  Owned result(call());
  notice_weights(false);
  return result && judge_rules(*innermost) ? result.release() : nullptr;
}

PyObject* call_in_rules(PyObject* const* values, std::size_t flagged_count, PyObject* keywords) {
  const std::unique_ptr<watch::ModuleCall> call = watch::enter_call(values[0]);
  if (!call) return nullptr;
  return call_by_rules(values, flagged_count, keywords);
}

// Like the other two. Also reports the running module to the watch.
PyObject* call_followed(PyObject* const* values, std::size_t flagged_count, PyObject* keywords) {
  std::unique_ptr<watch::ModuleCall> call = watch::module_begins(values[0]);
  if (!call) return nullptr;
  PyObject* result = *known_resolver ? call_by_rules(values, flagged_count, keywords)
                                     : call_where_lists_wait(values, flagged_count, keywords);
  watch::module_ends(std::move(call));
  return result;
}

template <PyObject* (*call)(PyObject* const*, std::size_t, PyObject*)>
PyObject* call_impl_stub(PyObject*, PyObject* const* values, std::size_t flagged_count, PyObject* keywords) {
  const Py_ssize_t count = PyVectorcall_NARGS(flagged_count);
  if (count == 0) return call_tap.call(values, flagged_count, keywords);
  const ModelCall model({values, count, keywords});
  if (!model.is_outermost()) [[likely]]
    return call(values, flagged_count, keywords);
  return model.leave(call(values, flagged_count, keywords));
}

FromC<vectorcallfunc> wanted_stub() {
  if (is_followed) return from_c<call_impl_stub<call_followed>>;
  return *known_resolver ? from_c<call_impl_stub<call_in_rules>> : from_c<call_impl_stub<call_where_lists_wait>>;
}

}  // namespace

bool begins_to_apply_lists(PyObject* module) noexcept {
  const ThreadState& state = thread_state;
  if (!lists_wait_for_modules || base_of(state.region) != nullptr || state.lists_suspended) return false;
  return !modules || std::binary_search(modules->begin(), modules->end(), module);
}

bool can_tap_modules(PyObject* call_impl) {
  if (call_tap.is_tapped() || host::TappedFunction::check(call_impl)) return true;
  PyErr_SetString(PyExc_RuntimeError,
                  "habana_mp cannot tell where modules run: torch.nn.Module._call_impl is not a Python function that "
                  "is called as others are. Use `within=None`, and the report of operations");
  return false;
}

bool tap_modules(PyObject* call_impl) {
  if (!can_tap_modules(call_impl)) return false;
  call_tap.stop();
  call_tap.tap(call_impl, wanted_stub());
  return true;
}

void untap_modules() noexcept { call_tap.stop(); }

bool lists_wait_for_a_module() noexcept { return lists_wait_for_modules; }

void wait_for_modules(std::optional<std::vector<PyObject*>> among) noexcept {
  lists_wait_for_modules = true;
  modules = std::move(among);
  if (modules) std::sort(modules->begin(), modules->end());
}

void stop_waiting_for_modules() noexcept {
  lists_wait_for_modules = false;
  modules.reset();
}

void follow_modules(bool follows) noexcept {
  is_followed = follows;
  call_tap.exchange_stub(wanted_stub());
}

void put_rules_in_modules(PyObject* resolver, PyObject* judge) noexcept {
  if (resolver != nullptr) free_marks_in_modules();
  const Owned former = std::exchange(*known_resolver, Owned::borrowed_or_null(resolver));
  const Owned former_judge = std::exchange(*known_judge, Owned::borrowed_or_null(judge));
  call_tap.exchange_stub(wanted_stub());
}

void convert_model_results(ResultSettings wanted) noexcept {
  const ResultSettings former = std::exchange(*settings, std::move(wanted));
}

}  // namespace habana_mp::engine

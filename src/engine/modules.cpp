#include "engine/modules.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "engine/model_results.hpp"
#include "engine/module_rules.hpp"
#include "engine/region.hpp"
#include "engine/state.hpp"
#include "errors.hpp"
#include "host/taps.hpp"
#include "watch/modules.hpp"

namespace habana_mp::engine {

namespace {

host::TappedFunction call_tap;
bool any_module = false;
std::vector<PyObject*> modules;  // sorted
// The four reasons for a stub.
bool lists_wait_for_modules = false;
bool rules_depend_on_modules = false;
bool is_followed = false;
bool results_are_converted = false;

// Calls a module while these lists apply.
PyObject* call_under(const RuleSet* lists, PyObject* const* values, std::size_t flagged_count, PyObject* keywords) {
  enter_lists(&call_tap, lists);
  PyObject* result = call_tap.call(values, flagged_count, keywords);
  if (result != nullptr) {
    leave_region(&call_tap);
  } else {
    const HeldError held;
    leave_region(&call_tap);
  }
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
  if (*rules == thread_state.region) return call_tap.call(values, flagged_count, keywords);
  return call_under(*rules, values, flagged_count, keywords);
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
  PyObject* result = rules_depend_on_modules ? call_by_rules(values, flagged_count, keywords)
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

bool is_wanted() { return is_followed || lists_wait_for_modules || rules_depend_on_modules || results_are_converted; }

FromC<vectorcallfunc> wanted_stub() {
  if (is_followed) return from_c<call_impl_stub<call_followed>>;
  return rules_depend_on_modules ? from_c<call_impl_stub<call_in_rules>>
                                 : from_c<call_impl_stub<call_where_lists_wait>>;
}

void put_stub_in(PyObject* call_impl, PyObject* answering) {
  const Owned held = Owned::borrowed(call_impl);
  call_tap.stop();
  if (is_wanted()) call_tap.tap(call_impl, answering, wanted_stub());
}

// After one of the reasons has gone.
void keep_wanted_stub() noexcept {
  if (is_wanted()) {
    call_tap.exchange_stub(wanted_stub());
  } else {
    call_tap.stop();
  }
}

}  // namespace

bool begins_to_apply_lists(PyObject* module) noexcept {
  const ThreadState& state = thread_state;
  if (!lists_wait_for_modules || base_of(state.region) != nullptr || state.lists_suspended) return false;
  return any_module || std::binary_search(modules.begin(), modules.end(), module);
}

bool may_wait_for_modules(PyObject* call_impl) {
  return can_follow_modules(call_impl) && rule_set_of_modules() != nullptr;
}

bool can_follow_modules(PyObject* call_impl) {
  if (call_tap.is_tapped() || host::TappedFunction::check(call_impl)) return true;
  PyErr_SetString(PyExc_RuntimeError,
                  "habana_mp cannot tell where modules run: torch.nn.Module._call_impl is not a Python function that "
                  "is called as others are. Use `within=None`, and the report of operations");
  return false;
}

bool follow_modules(PyObject* call_impl, PyObject* answering) {
  if (!can_follow_modules(call_impl)) return false;
  if (!std::exchange(is_followed, true)) put_stub_in(call_impl, answering);
  return true;
}

void stop_following_modules() noexcept {
  if (std::exchange(is_followed, false)) keep_wanted_stub();
}

bool put_rules_in_modules(PyObject* call_impl, PyObject* answering, PyObject* resolver) {
  if (!can_follow_modules(call_impl)) return false;
  free_marks_in_modules();
  set_module_rules(resolver);
  if (!std::exchange(rules_depend_on_modules, true)) put_stub_in(call_impl, answering);
  return true;
}

void take_rules_out_of_modules() noexcept {
  if (std::exchange(rules_depend_on_modules, false)) keep_wanted_stub();
  set_module_rules(nullptr);
}

bool convert_model_results(PyObject* call_impl, PyObject* answering, ResultSettings settings) {
  if (!can_follow_modules(call_impl)) return false;
  set_model_results(std::move(settings));
  if (!std::exchange(results_are_converted, true)) put_stub_in(call_impl, answering);
  return true;
}

void stop_converting_model_results() noexcept {
  if (std::exchange(results_are_converted, false)) keep_wanted_stub();
  set_model_results({});
}

bool lists_wait_for_a_module() noexcept { return lists_wait_for_modules; }

bool wait_for_modules(PyObject* call_impl, PyObject* answering, std::optional<std::vector<PyObject*>> among) {
  if (!may_wait_for_modules(call_impl)) return false;
  any_module = !among.has_value();
  modules = std::move(among).value_or(std::vector<PyObject*>());
  std::sort(modules.begin(), modules.end());
  if (!lists_wait_for_modules) {
    lists_wait_for_modules = true;
    put_stub_in(call_impl, answering);
  }
  return true;
}

void stop_waiting_for_modules() noexcept {
  lists_wait_for_modules = any_module = false;
  keep_wanted_stub();
  modules.clear();
}

}  // namespace habana_mp::engine

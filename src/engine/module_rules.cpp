#include "engine/module_rules.hpp"

#include <cstdint>
#include <utility>

#include "engine/modules.hpp"
#include "engine/state.hpp"
#include "errors.hpp"
#include "owned.hpp"
#include "watch/modules.hpp"

namespace habana_mp::engine {

namespace {

NeverDestroyed<Owned> resolver;
std::uint64_t generation = 0;  // rules that were found in another one are forgotten

// Asks Python. Returns null for the lists as they are; null with a Python exception set on failure.
const RuleSet* resolve(const watch::RunningModule* module, std::int64_t lists) {
  if (!*resolver) return nullptr;
  const Owned function = Owned::borrowed(resolver->get());
  const Owned objects = watch::objects_of(module);
  const Owned given(PyLong_FromLongLong(lists));
  if (!objects || !given) return nullptr;
  const Owned number(PyObject_CallFunctionObjArgs(function.get(), objects.get(), given.get(), nullptr));
  if (!number) return nullptr;
  const unsigned long long value = PyLong_AsUnsignedLongLong(number.get());
  return PyErr_Occurred() != nullptr || value == 0 ? nullptr : rule_set(value);
}

}  // namespace

void set_module_rules(PyObject* function) noexcept {
  ++generation;
  *resolver = Owned::borrowed_or_null(function);
}

std::optional<const RuleSet*> rules_in_module(PyObject* module) {
  const ThreadState& state = thread_state;
  if (state.lists_suspended) return state.region;
  const watch::ModuleCall* const call = watch::innermost_module_call();
  const RuleSet* const around = begins_to_apply_lists(module) ? rule_set_of_modules() : base_of(state.region);
  if (call == nullptr || !call->module) return around;
  const bool is_outside = around == nullptr && lists_wait_for_a_module();
  const std::int64_t lists = is_outside ? -1 : around == nullptr || is_of_modules(around) ? 0 : around->number;
  const auto known = [&]() -> watch::FoundRules* {
    for (watch::FoundRules& one : call->module->rules) {
      if (one.lists == lists) return &one;
    }
    return nullptr;
  };
  const watch::FoundRules* const before = known();
  if (before != nullptr && before->generation == generation) [[likely]]
    return before->rules == nullptr ? around : before->rules;
  const watch::FoundRules found{lists, generation, resolve(call->module.get(), lists)};
  if (PyErr_Occurred() != nullptr) return std::nullopt;
  // Another thread may have found some meanwhile, or converted: then the next call asks again.
  if (watch::FoundRules* const now = known()) {
    *now = found;
  } else {
    call->module->rules.push_back(found);
  }
  return found.rules == nullptr ? around : found.rules;
}

}  // namespace habana_mp::engine

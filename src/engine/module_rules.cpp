#include "engine/module_rules.hpp"

#include <cstdint>
#include <utility>

#include "engine/modules.hpp"
#include "engine/state.hpp"
#include "errors.hpp"
#include "owned.hpp"
#include "watch/modules.hpp"
#include "watch/table.hpp"

namespace habana_mp::engine {

namespace {

// Where rules were looked for: in a module at a path, kept in a precision, under the lists of a region.
struct Place {
  std::uint64_t module = 0;  // its number, plus 1
  std::int64_t lists = 0;    // see set_module_rules
  std::uint8_t kept_in = 0;
  bool operator==(const Place&) const = default;
  [[nodiscard]] std::size_t hash() const noexcept {
    return static_cast<std::size_t>(module * 64 + static_cast<std::uint64_t>(lists) * 8 + kept_in) *
           std::size_t{0x9E3779B97F4A7C15};
  }
};

struct Tables {
  Owned resolver;
  watch::Table<Place, const RuleSet*> found;
  std::uint64_t times_forgotten = 0;
};
NeverDestroyed<Tables> tables;

// Asks Python. Returns null for the lists as they are; null with a Python exception set on failure.
const RuleSet* resolve(const watch::Module* module, const Place& place) {
  if (!tables->resolver) return nullptr;
  const Owned resolver = Owned::borrowed(tables->resolver.get());
  const Owned objects(watch::objects_of(module));
  const Owned lists(PyLong_FromLongLong(place.lists));
  const Owned kept_in(PyLong_FromLong(place.kept_in));
  if (!objects || !lists || !kept_in) return nullptr;
  const Owned number(PyObject_CallFunctionObjArgs(resolver.get(), objects.get(), lists.get(), kept_in.get(), nullptr));
  if (!number) return nullptr;
  const unsigned long long value = PyLong_AsUnsignedLongLong(number.get());
  return PyErr_Occurred() != nullptr || value == 0 ? nullptr : rule_set(value);
}

}  // namespace

void set_module_rules(PyObject* resolver) noexcept {
  ++tables->times_forgotten;
  tables->found.clear();
  tables->resolver = Owned::borrowed_or_null(resolver);
}

std::optional<const RuleSet*> rules_in_module(PyObject* module) {
  const ThreadState& state = thread_state;
  if (state.lists_suspended) return state.region;
  const watch::ModuleCall* const call = watch::innermost_module_call();
  const RuleSet* const around = begins_to_apply_lists(module) ? rule_set_of_modules() : base_of(state.region);
  if (call == nullptr || call->module == nullptr) return around;
  const bool is_outside = around == nullptr && lists_wait_for_a_module();
  const std::int64_t lists = is_outside ? -1 : around == nullptr || is_of_modules(around) ? 0 : around->number;
  const Place place{call->module->number + 1, lists, call->kept_in};
  if (const RuleSet* const* known = tables->found.find(place)) [[likely]]
    return *known == nullptr ? around : *known;
  const std::uint64_t times_forgotten = tables->times_forgotten;
  const RuleSet* const found = resolve(call->module, place);
  if (PyErr_Occurred() != nullptr) return std::nullopt;
  // If another thread has converted meanwhile, the next call asks again.
  if (tables->times_forgotten == times_forgotten) tables->found[place] = found;
  return found == nullptr ? around : found;
}

}  // namespace habana_mp::engine

#include "engine/slots.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/call.hpp"
#include "engine/known_tensors.hpp"
#include "engine/modules.hpp"
#include "engine/originals.hpp"
#include "engine/state.hpp"
#include "engine/taps.hpp"
#include "host/tensors.hpp"
#include "tensor/buffers.hpp"
#include "weights/escapes.hpp"

#ifdef Py_GIL_DISABLED
#error "habana_mp relies on the GIL; a free-threaded Python is not supported"
#endif

namespace habana_mp::engine {

namespace {

// What was installed, as the caller gave it.
NeverDestroyed<Owned> policy_in_torch;

// ---- the functions in the slots ---------------------------------------------------------------------------------
// Each target has its own stubs. Its index is a constant in them, so no lookup is needed to find the called operation.
// There are thousands of stubs, so they share any code of more than a few instructions.

PyObject* answer_vectorcall(Target& target, PyObject* callable, PyObject* const* values, std::size_t flagged_count,
                            PyObject* keywords) {
  const Arguments arguments{values, PyVectorcall_NARGS(flagged_count), keywords};
  if (target.is_method()) {
    const bool plausible = arguments.positional >= 1 && PyObject_TypeCheck(values[0], PyDescr_TYPE(callable)) != 0 &&
                           (target.kind == host::CallableKind::method || arguments.count() == 1);
    // CPython raises the error for a wrong call.
    if (!plausible) return target.original_slot(callable, values, flagged_count, keywords);
  } else if (target.is_operator() && is_decided(target)) {
    return call_operator(target, arguments);
  }
  return answer(target, arguments);
}

// Bound methods (`f = x.matmul`), old and new, and the calls that the interpreter inlines bypass the descriptor's slot
// and call the C function of the definition.
PyObject* answer_method(Target& target, PyObject* self, PyObject* tuple, PyObject* dictionary) {
  const Py_ssize_t given = tuple == nullptr ? 0 : PyTuple_GET_SIZE(tuple);
  const Py_ssize_t named = dictionary == nullptr ? 0 : PyDict_GET_SIZE(dictionary);
  const Owned names(named == 0 ? nullptr : PyTuple_New(named));
  if (named != 0 && !names) return nullptr;
  OwnedArray values(1 + given + named);
  values.add_borrowed(self);
  for (Py_ssize_t i = 0; i < given; ++i) values.add_borrowed(PyTuple_GET_ITEM(tuple, i));
  Py_ssize_t position = 0;
  Py_ssize_t i = 0;
  PyObject* name = nullptr;
  PyObject* value = nullptr;
  while (named != 0 && PyDict_Next(dictionary, &position, &name, &value) != 0) {
    PyTuple_SET_ITEM(names.get(), i, Owned::borrowed(name).release());
    values.add_borrowed(value);
    ++i;
  }
  return answer(target, {values.data(), 1 + given, names.get()});
}

// Answers a method without arguments, for which the interpreter bypasses the descriptor's slot.
PyObject* answer_found_method(Target& target, PyObject* self, PyObject*) { return answer(target, {&self, 1, nullptr}); }

template <std::size_t index>
Target& target_at() noexcept {
  return *targets[index];
}

struct IndexedStubs {
  FromC<vectorcallfunc> vectorcall;
  FromC<PyCFunctionWithKeywords> method;
  FromC<PyCFunction> find_method;
};

template <std::size_t... index>
constexpr std::array<IndexedStubs, sizeof...(index)> make_stubs(std::index_sequence<index...>) {
  return {IndexedStubs{from_c_with<answer_vectorcall, target_at<index>>, from_c_with<answer_method, target_at<index>>,
                       from_c_with<answer_found_method, target_at<index>>}...};
}
constexpr auto stubs = make_stubs(std::make_index_sequence<target_capacity>());

// ---- tensor[key] = value, tensor[key] -----------------------------------------------------------------------------

Target* assignment = nullptr;

int assignment_stub(PyObject* self, PyObject* key, PyObject* value) {
  return answer_assignment(*assignment, self, key, value);
}

Target* subscript = nullptr;

PyObject* subscript_stub(PyObject* self, PyObject* key) { return answer_subscript(*subscript, self, key); }

// ---- patching -----------------------------------------------------------------------------------------------------

host::Stubs stubs_of(const Target& target) {
  if (target.kind == host::CallableKind::assignment) return {.assignment = from_c<assignment_stub>};
  if (target.kind == host::CallableKind::subscript) return {.subscript = from_c<subscript_stub>};
  const IndexedStubs& indexed = stubs[target.index];
  return {.vectorcall = indexed.vectorcall, .method = indexed.method, .method_no_arguments = indexed.find_method};
}

// Finds the kind of an object as if it was not tapped. False with an exception set if it cannot be patched.
bool kind_untapped(PyObject* object, host::CallableKind& kind) {
  const SuspendedWriter suspended(object);
  return host::find_kind(object, kind);
}

void hook(Target& target, const host::TensorClasses& classes) {
  target.is_writer = suspend_writer(target.object.get());
  if (target.is_writer) target.counts_no_version = true;
  if (target.kind == host::CallableKind::assignment) assignment = &target;
  if (target.kind == host::CallableKind::subscript) subscript = &target;
  host::put_in(target, stubs_of(target), classes);
  target.installed = true;
}

void unhook(Target& target, const host::TensorClasses& classes) {
  host::take_out(target, stubs_of(target), classes);
  if (std::exchange(target.is_writer, false)) resume_writer(target.object.get());
  target.listed = target.unlisted = &no_rule;
  target.installed = target.in_policy = target.in_regions = target.is_observed = false;
}

std::uint64_t changes = 0;

// Finds or makes a target for each entry. False with a Python exception set if one of the objects cannot be handled.
bool find_targets(const std::vector<CoveredObject>& entries, std::vector<Target*>& found) {
  found.reserve(entries.size());
  for (const CoveredObject& entry : entries) {
    host::CallableKind kind = host::CallableKind::function;
    Target* target = find_target(entry.object);
    if (target == nullptr || !target->installed) {
      if (!kind_untapped(entry.object, kind)) return false;
      const bool is_operator = entry.operation.find("::") != std::string::npos;
      if (is_operator && kind == host::CallableKind::function) kind = host::CallableKind::slow_operator;
      target = target_for(entry.object, kind, entry.operation.c_str(), entry.shown);
      if (target == nullptr) return false;
    }
    found.push_back(target);
  }
  return true;
}

// Hooks the targets that something needs now, and unhooks the others.
void hook_what_is_needed(const host::TensorClasses& classes) {
  for (std::size_t i = 0; i < target_count; ++i) {
    Target& target = *targets[i];
    const bool is_needed = target.in_policy || target.in_regions || target.is_observed;
    if (is_needed == target.installed) continue;
    is_needed ? hook(target, classes) : unhook(target, classes);
  }
}

// False if these are rules of opt_level="O0", or none.
bool may_cast(const std::vector<CoveredObject>& entries) {
  return !entries.empty() && entries.front().listed->action != Action::left;
}

// Returns the rules of a set, or for null those of convert's lists, for changes.
RuleSet rules_based_on(const RuleSet* set, const std::string& name) {
  RuleSet content;
  if (set != nullptr) {
    content.rules = set->rules;
  } else {
    content.rules.fill(&no_rule);
    for (std::size_t i = 0; i < target_count; ++i) content.rules[i] = targets[i]->listed;
  }
  content.device = set == nullptr ? RuleSet::Device::any : set->device;
  content.after_tracked_cast = set == nullptr ? nullptr : set->after_tracked_cast;
  content.is_in_modules = true;
  content.base = base_of(set);
  content.casts = set == nullptr ? policy_is_installed : set->casts;
  content.name = name;
  return content;
}

// Adds the rules of these entries to a set. False with a Python exception set if one of the objects cannot be handled.
bool add_rules(const std::vector<CoveredObject>& entries, RuleSet& content) {
  std::vector<Target*> found;
  if (!find_targets(entries, found)) return false;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    content.rules[found[i]->index] = entries[i].listed;
    content.covered.push_back({found[i], entries[i].unlisted});
    if (!found[i]->installed) found[i]->operation = entries[i].operation;
  }
  return true;
}

}  // namespace

bool install(std::vector<CoveredObject> entries, bool within_modules, PyObject* policy) {
  std::vector<Target*> found;
  if (!find_targets(entries, found)) return false;
  RuleSet* of_modules = within_modules ? rule_set_of_modules() : known_rule_set_of_modules();
  if (within_modules && of_modules == nullptr) return false;
  const bool casts = may_cast(entries);
  std::vector<const Rule*> listed;  // outside of modules
  listed.reserve(entries.size());
  for (const CoveredObject& one : entries) {
    listed.push_back(within_modules ? intern(without_lowering(*one.listed, *one.unlisted)) : one.listed);
  }
  const std::optional<host::TensorClasses> classes = host::find_tensor_classes();
  if (!classes) return false;
  weights::tap_view_and_numpy(&lists_apply_here);
  // From here on nothing can fail.
  ++changes;
  if (of_modules != nullptr) {
    of_modules->rules.fill(&no_rule);
    of_modules->casts = casts;
  }
  free_marks_in_modules();
  for (std::size_t i = 0; i < target_count; ++i) {
    targets[i]->in_policy = false;
    targets[i]->listed = &no_rule;
  }
  for (std::size_t i = 0; i < entries.size(); ++i) {
    Target& target = *found[i];
    if (of_modules != nullptr) of_modules->rules[target.index] = entries[i].listed;
    target.operation = std::move(entries[i].operation);
    target.in_policy = true;
    target.listed = listed[i];
    target.unlisted = entries[i].unlisted;
    target.counts_no_version = target.unlisted->counts_no_version || target.is_writer;
  }
  hook_what_is_needed(*classes);
  policy_is_installed = casts;
  const Owned former = std::exchange(*policy_in_torch, Owned::borrowed(policy));
  return true;
}

PyObject* installed_policy() noexcept { return policy_in_torch->get(); }

RuleSet* make_rule_set(const std::vector<CoveredObject>& entries, RuleSet::Device device, PyObject* after_tracked_cast,
                       const std::string& name) {
  RuleSet content;
  content.rules.fill(&no_rule);
  content.device = device;
  content.after_tracked_cast = after_tracked_cast;
  content.name = name;
  content.casts = may_cast(entries);
  RuleSet* set = add_rules(entries, content) ? intern_rule_set(std::move(content)) : nullptr;
  return set == nullptr || !put_in(*set) ? nullptr : set;
}

RuleSet* make_module_rule_set(const RuleSet* base, const std::vector<CoveredObject>& changed, const std::string& name) {
  RuleSet content = rules_based_on(base, name);
  if (!add_rules(changed, content)) return nullptr;
  RuleSet* set = intern_rule_set(std::move(content));
  return put_in(*set) ? set : nullptr;
}

RuleSet* exact_rule_set() {
  RuleSet content = rules_based_on(thread_state.region, "exact code");
  for (std::size_t i = 0; i < target_count; ++i) {
    const Rule& rule = *content.rules[i];
    const bool lowers = rule.action == Action::precision && rules::is_by_list(rule.reason) && is_lower(rule.to);
    if (lowers) content.rules[i] = targets[i]->unlisted;
  }
  RuleSet* set = intern_rule_set(std::move(content));
  set->installation = installation_number();
  return set;
}

bool put_in(RuleSet& set) {
  host::CallableKind kind = host::CallableKind::function;
  for (const RuleSet::Covered& one : set.covered) {
    if (!one.target->installed && !kind_untapped(one.target->object.get(), kind)) return false;
  }
  const std::optional<host::TensorClasses> classes = host::find_tensor_classes();
  if (!classes) return false;
  weights::tap_view_and_numpy(&lists_apply_here);
  // From here on nothing can fail.
  ++changes;
  for (const RuleSet::Covered& one : set.covered) {
    one.target->in_regions = true;
    if (one.target->installed) continue;
    one.target->unlisted = one.unlisted;
    one.target->counts_no_version = one.unlisted->counts_no_version;
  }
  hook_what_is_needed(*classes);
  set.installation = installation_number();
  return true;
}

bool observe(std::vector<CoveredObject> entries) {
  std::vector<Target*> found;
  if (!find_targets(entries, found)) return false;
  const std::optional<host::TensorClasses> classes = host::find_tensor_classes();
  if (!classes) return false;
  // From here on nothing can fail.
  ++changes;
  for (std::size_t i = 0; i < target_count; ++i) targets[i]->is_observed = false;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    Target& target = *found[i];
    target.is_observed = true;
    if (target.installed) continue;
    target.operation = std::move(entries[i].operation);
    target.counts_no_version = false;
  }
  hook_what_is_needed(*classes);
  return true;
}

bool uninstall() {
  if (!host::is_bound()) return true;  // nothing is patched before torch is bound
  const std::optional<host::TensorClasses> classes = host::find_tensor_classes();
  if (!classes) return false;
  // From here on nothing can fail.
  forget_regions();
  stop_waiting_for_modules();
  put_rules_in_modules(nullptr, nullptr);
  free_marks_in_modules();
  if (RuleSet* of_modules = known_rule_set_of_modules()) of_modules->rules.fill(&no_rule);
  policy_is_installed = false;
  const Owned policy = std::exchange(*policy_in_torch, nullptr);
  tensor::forget_buffers();
  for (std::size_t i = 0; i < target_count; ++i) {
    if (targets[i]->installed) unhook(*targets[i], *classes);
  }
  weights::untap_view_and_numpy();
  untap_builtins();
  forget_all_known();
  return true;
}

std::uint64_t change_count() noexcept { return changes; }

std::size_t installed_count() noexcept {
  std::size_t count = 0;
  for (std::size_t i = 0; i < target_count; ++i) count += targets[i]->installed ? 1 : 0;
  return count;
}

}  // namespace habana_mp::engine

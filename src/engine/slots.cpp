#include "engine/slots.hpp"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "engine/call.hpp"
#include "engine/lowered.hpp"
#include "engine/modules.hpp"
#include "engine/originals.hpp"
#include "engine/state.hpp"
#include "engine/watched.hpp"
#include "host/memory_map.hpp"
#include "tensor/cast_memory.hpp"
#include "weights/escapes.hpp"

#ifdef Py_GIL_DISABLED
#error "habana_mp relies on the GIL; a free-threaded Python is not supported"
#endif

namespace habana_mp::engine {

namespace {

// ---- what stands in the slots -----------------------------------------------------------------------------------
// One stub for each target: its index is a constant, so that no look-up is needed to know which operation was called.
// What a stub does is written once outside of it where it is more than a few instructions: there are thousands.

PyObject* answer_vectorcall(Target& target, PyObject* callable, PyObject* const* values, std::size_t flagged_count,
                            PyObject* keywords) {
  const Arguments arguments{values, PyVectorcall_NARGS(flagged_count), keywords};
  if (target.is_method()) {
    const bool plausible = arguments.positional >= 1 && PyObject_TypeCheck(values[0], PyDescr_TYPE(callable)) != 0 &&
                           (target.shape == host::Shape::method || arguments.count() == 1);
    // CPython knows best what is wrong with the call.
    if (!plausible) return target.original_slot(callable, values, flagged_count, keywords);
  } else if (target.is_operator() && is_decided(target)) {
    return call_operator(target, arguments);
  }
  return answer(target, arguments);
}

// Bound methods (`f = x.matmul`), old and new, and the calls that the interpreter inlines go to the definition's C
// function without passing the descriptor's slot.
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

template <std::size_t index>
PyObject* vectorcall_stub(PyObject* callable, PyObject* const* values, std::size_t flagged_count, PyObject* keywords) {
  return answer_vectorcall(*targets[index], callable, values, flagged_count, keywords);
}

template <std::size_t index>
PyObject* method_stub(PyObject* self, PyObject* tuple, PyObject* dictionary) {
  return answer_method(*targets[index], self, tuple, dictionary);
}

template <std::size_t index>
PyObject* find_method_stub(PyObject* self, PyObject*) {
  return answer(*targets[index], {&self, 1, nullptr});
}

struct IndexedStubs {
  vectorcallfunc vectorcall;
  PyCFunctionWithKeywords method;
  PyCFunction find_method;
};

template <std::size_t... index>
constexpr std::array<IndexedStubs, sizeof...(index)> make_stubs(std::index_sequence<index...>) {
  return {IndexedStubs{vectorcall_stub<index>, method_stub<index>, find_method_stub<index>}...};
}
constexpr auto stubs = make_stubs(std::make_index_sequence<target_capacity>());

// ---- tensor[key] = value, tensor[key] -----------------------------------------------------------------------------

Target* assignment = nullptr;

int assignment_stub(PyObject* self, PyObject* key, PyObject* value) {
  return answer_assignment(*assignment, self, key, value, assignment->original_assignment);
}

Target* subscript = nullptr;

PyObject* subscript_stub(PyObject* self, PyObject* key) {
  return answer_subscript(*subscript, self, key, subscript->original_subscript);
}

// ---- storing ------------------------------------------------------------------------------------------------------

host::Stubs stubs_of(const Target& target) {
  if (target.shape == host::Shape::assignment) return {.assignment = assignment_stub};
  if (target.shape == host::Shape::subscript) return {.subscript = subscript_stub};
  const IndexedStubs& indexed = stubs[target.index];
  return {.vectorcall = indexed.vectorcall, .method = indexed.method, .method_no_arguments = indexed.find_method};
}

// Finds out how an object can be covered, as if it was not watched.
bool shape_unwatched(PyObject* object, host::MemoryMap& memory, host::Shape& shape) {
  const bool is_writer = suspend_writer(object);
  const bool found = host::find_shape(object, memory, shape);
  if (is_writer) resume_writer(object);
  return found;
}

void hook(Target& target) {
  target.is_writer = suspend_writer(target.object.get());
  if (target.is_writer) target.counts_no_version = true;
  if (target.shape == host::Shape::assignment) assignment = &target;
  if (target.shape == host::Shape::subscript) subscript = &target;
  host::put_in(target, stubs_of(target));
  target.installed = true;
}

void unhook(Target& target) {
  host::take_out(target, stubs_of(target));
  if (std::exchange(target.is_writer, false)) resume_writer(target.object.get());
  target.listed = target.unlisted = &no_rule;
  target.installed = target.in_policy = target.in_regions = false;
}

std::uint64_t changes = 0;

// A target for each entry. False with a Python exception set where one of them cannot be covered.
bool find_targets(const std::vector<CoveredObject>& entries, std::vector<Target*>& found) {
  host::MemoryMap memory;
  found.reserve(entries.size());
  for (const CoveredObject& entry : entries) {
    host::Shape shape = host::Shape::function;
    Target* target = find_target(entry.object);
    if (target == nullptr || !target->installed) {
      if (!shape_unwatched(entry.object, memory, shape)) return false;
      const bool is_operator = entry.operation.find("::") != std::string::npos;
      if (is_operator && shape == host::Shape::function) shape = host::Shape::slow_operator;
      target = target_for(entry.object, shape, entry.operation.c_str(), entry.shown);
      if (target == nullptr) return false;
    }
    found.push_back(target);
  }
  return true;
}

}  // namespace

bool install(const std::vector<CoveredObject>& entries, bool within_modules) {
  std::vector<Target*> found;
  if (!find_targets(entries, found)) return false;
  RuleSet* of_modules = within_modules ? rule_set_of_modules() : known_rule_set_of_modules();
  if (within_modules && of_modules == nullptr) return false;
  const std::unordered_set<Target*> wanted(found.begin(), found.end());
  // From here on nothing can fail.
  ++changes;
  if (of_modules != nullptr) of_modules->rules.fill(&no_rule);
  weights::watch_view_and_numpy(&lists_speak_here);
  for (std::size_t i = 0; i < target_count; ++i) {
    Target& target = *targets[i];
    target.in_policy = wanted.contains(&target);
    if (target.in_policy || !target.installed) continue;
    target.listed = &no_rule;
    if (!target.in_regions) unhook(target);
  }
  for (std::size_t i = 0; i < entries.size(); ++i) {
    found[i]->operation = entries[i].operation;
    const Rule* listed = intern(entries[i].listed);
    if (of_modules != nullptr) of_modules->rules[found[i]->index] = listed;
    found[i]->listed = within_modules ? intern(without_lowering(entries[i].listed, entries[i].unlisted)) : listed;
    found[i]->unlisted = intern(entries[i].unlisted);
    found[i]->counts_no_version = entries[i].unlisted.counts_no_version || found[i]->is_writer;
  }
  for (std::size_t i = 0; i < target_count; ++i) {
    if (targets[i]->in_policy && !targets[i]->installed) hook(*targets[i]);
  }
  policy_is_installed = !entries.empty();
  return true;
}

static bool may_put_in(const RuleSet& set) {
  host::MemoryMap memory;
  host::Shape shape = host::Shape::function;
  return std::all_of(set.covered.begin(), set.covered.end(), [&](const RuleSet::Covered& one) {
    return one.target->installed || shape_unwatched(one.target->object.get(), memory, shape);
  });
}

RuleSet* make_rule_set(const std::vector<CoveredObject>& entries, RuleSet::Device device, PyObject* after_recorded_cast,
                       const std::string& name) {
  std::vector<Target*> found;
  if (!find_targets(entries, found)) return nullptr;
  RuleSet content;
  content.rules.fill(&no_rule);
  content.device = device;
  content.after_recorded_cast = after_recorded_cast;
  content.name = name;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    content.rules[found[i]->index] = intern(entries[i].listed);
    content.covered.push_back({found[i], intern(entries[i].unlisted)});
    if (!found[i]->installed) found[i]->operation = entries[i].operation;
  }
  if (!may_put_in(content)) return nullptr;  // before it takes one of the numbers that there are
  RuleSet* set = intern_rule_set(std::move(content));
  return set == nullptr || !put_in(*set) ? nullptr : set;
}

bool put_in(RuleSet& set) {
  if (!may_put_in(set)) return false;
  ++changes;
  weights::watch_view_and_numpy(&lists_speak_here);
  for (const RuleSet::Covered& one : set.covered) {
    one.target->in_regions = true;
    if (one.target->installed) continue;
    one.target->unlisted = one.unlisted;
    one.target->counts_no_version = one.unlisted->counts_no_version;
    hook(*one.target);
  }
  set.installation = installation_number();
  return true;
}

void uninstall() noexcept {
  forget_regions();
  stop_watching_modules();
  if (RuleSet* of_modules = known_rule_set_of_modules()) of_modules->rules.fill(&no_rule);
  policy_is_installed = false;
  if (tensor::cast_memory.forget != nullptr) tensor::cast_memory.forget();
  for (std::size_t i = 0; i < target_count; ++i) {
    if (targets[i]->installed) unhook(*targets[i]);
  }
  weights::stop_watching_view_and_numpy();
  stop_watching_builtins();
  forget_all_lowered();
}

std::uint64_t change_count() noexcept { return changes; }

std::size_t installed_count() noexcept {
  std::size_t count = 0;
  for (std::size_t i = 0; i < target_count; ++i) count += targets[i]->installed ? 1 : 0;
  return count;
}

}  // namespace habana_mp::engine

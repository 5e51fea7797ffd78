#include "watch/modules.hpp"

#include <algorithm>
#include <deque>
#include <iterator>
#include <unordered_map>
#include <utility>

#include "errors.hpp"
#include "host/modes.hpp"
#include "watch/events.hpp"
#include "watch/table.hpp"
#include "weakrefs.hpp"

namespace habana_mp::watch {

namespace {

thread_local ModuleCall* innermost = nullptr;
// Blocks that were given away, by thread.
thread_local std::deque<ModuleCall> blocks;

// From which number of recorded operations on a module ran in this thread; null for none.
struct Stretch {
  std::uint64_t from;
  Module* module;
};
constexpr std::size_t most_stretches = 1 << 16;
thread_local std::deque<Stretch> stretches;

// From now on this module runs.
void note_stretch(Module* module) {
  const std::uint64_t from = host::next_sequence_number();
  if (!stretches.empty() && stretches.back().from == from) {  // nothing was recorded meanwhile
    stretches.back().module = module;
    return;
  }
  if (stretches.size() == most_stretches) stretches.pop_front();
  stretches.push_back({from, module});
}

struct Child {
  const Module* parent = nullptr;
  PyObject* object = nullptr;
  bool operator==(const Child&) const = default;
  [[nodiscard]] std::size_t hash() const noexcept { return hash_of(parent) * 31 + hash_of(object); }
};
struct Known {
  Owned reference;
  Module* module = nullptr;
};

struct Tables {
  Owned names;
  std::deque<Module> storage;  // its elements never move
  std::vector<Module*> all;
  Table<Child, Known> children;
  std::unordered_map<std::string, Module*> by_path;
  std::unordered_map<PyObject*, Known> last;  // where a module was called last beside others
};
NeverDestroyed<Tables> tables;

Owned reference_to(PyObject* module) {
  Owned reference(PyWeakref_NewRef(module, nullptr));
  if (!reference) PyErr_Clear();
  return reference;
}

bool is_known(const Known& known, PyObject* module) {
  return known.reference && referent_of(known.reference.get()) == module;
}

Module* module_at(Module* parent, std::string path, std::string class_name) {
  Module*& found = tables->by_path[path];
  if (found == nullptr) {
    found = &tables->storage.emplace_back();
    found->parent = parent;
    found->number = tables->all.size();
    found->path = std::move(path);
    tables->all.push_back(found);
  }
  found->class_name = std::move(class_name);
  return found;
}

// The objects of the modules around, from the innermost outwards. One that is gone is None.
Owned objects_around(const Module* module) {
  Owned list(PyList_New(0));
  for (; list && module != nullptr; module = module->parent) {
    PyObject* const object = module->reference ? referent_of(module->reference.get()) : nullptr;
    if (PyList_Append(list.get(), object == nullptr ? Py_None : object) != 0) list.reset();
  }
  return list;
}

// Asks Python. Null where it does not tell.
Module* find_module(Module* around, PyObject* object) {
  if (!tables->names) return around;
  const Owned names = Owned::borrowed(tables->names.get());
  const Owned list = objects_around(around);
  const Owned told(list ? PyObject_CallFunctionObjArgs(names.get(), object, list.get(), nullptr) : nullptr);
  int steps = 0;
  const char* name = nullptr;
  const char* class_name = nullptr;
  if (!told || PyArg_ParseTuple(told.get(), "iss", &steps, &name, &class_name) == 0) return around;
  Module* parent = steps < 0 ? nullptr : around;
  for (; steps > 0 && parent != nullptr; --steps) parent = parent->parent;
  if (*name == '\0') return parent;
  return module_at(parent, parent == nullptr ? name : parent->path + "." + name, class_name);
}

Module* module_of(Module* around, PyObject* object) {
  if (around == nullptr) {
    const auto last = tables->last.find(object);
    if (last != tables->last.end() && is_known(last->second, object)) return last->second.module;
  }
  const Child child{around, object};
  const Known* const known = tables->children.find(child);
  if (known != nullptr && is_known(*known, object)) [[likely]]
    return known->module;
  HeldError held;
  Module* const module = find_module(around, object);
  PyErr_Clear();
  tables->children[child] = {reference_to(object), module};
  if (around != nullptr && module != nullptr) tables->last[object] = {reference_to(object), module};
  if (module != nullptr && module != around) module->reference = reference_to(object);
  held.restore();
  return module;
}

}  // namespace

ModuleCall* innermost_module_call() noexcept { return innermost; }

void set_module_names(PyObject* function) noexcept { tables->names = Owned::borrowed_or_null(function); }

void module_begins(ModuleCall& around, PyObject* module) {
  around.outer = innermost;
  around.is_in_backward = innermost == nullptr ? host::gradients_are_worked_out() : innermost->is_in_backward;
  around.module = module_of(innermost == nullptr ? nullptr : innermost->module, module);
  note_stretch(around.module);
  around.begin = nanoseconds();
  innermost = &around;
}

void module_ends(ModuleCall& around) noexcept {
  innermost = around.outer;
  note_stretch(innermost == nullptr ? nullptr : innermost->module);
  if (around.module == nullptr || (around.outer != nullptr && around.outer->module == around.module)) return;
  const std::uint64_t end = nanoseconds();
  ++around.module->calls;
  around.module->nanoseconds += end - around.begin;
  note_event({.module = static_cast<std::int64_t>(around.module->number),
              .begin = around.begin,
              .end = end,
              .thread = thread_number()});
}

Module* module_of_gradient() noexcept {
  const std::uint64_t number = host::sequence_number_of_gradient();
  const auto after = std::upper_bound(stretches.begin(), stretches.end(), number,
                                      [](std::uint64_t value, const Stretch& one) { return value < one.from; });
  return after == stretches.begin() ? nullptr : std::prev(after)->module;
}

std::int64_t running_module() noexcept {
  return innermost == nullptr || innermost->module == nullptr ? -1
                                                              : static_cast<std::int64_t>(innermost->module->number);
}

void enter_module(std::int64_t number) {
  ModuleCall& block = blocks.emplace_back();
  block.outer = innermost;
  block.module = number < 0 ? nullptr : tables->all[static_cast<std::size_t>(number)];
  block.has_frame = false;
  block.is_in_backward = host::gradients_are_worked_out();
  innermost = &block;
}

void leave_module() noexcept {
  innermost = innermost->outer;
  blocks.pop_back();
}

Module* module_named(const std::string& path) {
  const auto known = tables->by_path.find(path);
  return known != tables->by_path.end() ? known->second : module_at(nullptr, path, "");
}

const std::vector<Module*>& all_modules() noexcept { return tables->all; }

void forget_module_calls() noexcept {
  for (Module* module : tables->all) module->calls = module->nanoseconds = 0;
}

}  // namespace habana_mp::watch

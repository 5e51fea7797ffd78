#include "watch/modules.hpp"

#include <deque>
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
  around.begin = nanoseconds();
  innermost = &around;
}

void module_ends(ModuleCall& around) noexcept {
  innermost = around.outer;
  if (around.module == nullptr || (around.outer != nullptr && around.outer->module == around.module)) return;
  const std::uint64_t end = nanoseconds();
  ++around.module->calls;
  around.module->nanoseconds += end - around.begin;
  note_event({.module = static_cast<std::int64_t>(around.module->number),
              .begin = around.begin,
              .end = end,
              .thread = thread_number()});
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

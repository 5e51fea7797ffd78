#include "watch/modules.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "errors.hpp"
#include "host/frames.hpp"
#include "host/modes.hpp"
#include "watch/events.hpp"
#include "watch/table.hpp"
#include "weakrefs.hpp"

namespace habana_mp::watch {

namespace {

thread_local OpenCalls<ModuleCall> open_calls;

// The module that ran in this thread from this sequence number of autograd on; -1 stands for no module.
struct Stretch {
  std::uint64_t from;
  std::int64_t module;
};
constexpr std::size_t most_stretches = 1 << 16;
thread_local std::vector<Stretch> stretches;

// Allocates what `note_stretch` needs in this thread.
void prepare_stretches() { stretches.reserve(most_stretches); }

// Notes that the innermost module runs from now on.
void note_stretch() noexcept {
  const std::uint64_t from = host::next_sequence_number();
  const std::int64_t module = running_module();
  if (!stretches.empty() && stretches.back().module == module) return;
  if (!stretches.empty() && stretches.back().from == from) {  // autograd tracked no operation meanwhile
    stretches.back().module = module;
    return;
  }
  if (stretches.size() == stretches.capacity()) {
    stretches.erase(stretches.begin(), stretches.begin() + static_cast<std::ptrdiff_t>(stretches.size() / 2));
  }
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
  std::uint8_t kept_in = 0;  // see ModuleCall
};
struct Found {
  Module* module = nullptr;
  std::uint8_t kept_in = 0;
  bool is_part = true;  // of a module around; false for one that only runs in its forward
};

struct Tables {
  Owned names;
  std::map<std::uint64_t, Module> all;  // by number; its elements never move
  std::uint64_t next_number = 0;
  std::unordered_map<std::string, Module*> by_path;
  Table<Child, Known> children;
  Table<Child, Known> last;  // the place of a module that was called inside others before; the key has no parent
  std::uint64_t times_forgotten = 0;
};
NeverDestroyed<Tables> tables;

Owned reference_to(PyObject* module) {
  Owned reference(PyWeakref_NewRef(module, nullptr));
  if (!reference) clear_error();  // a class without weak references; no other code ran
  return reference;
}

bool is_known(const Known& known, PyObject* module) {
  return known.reference && referent_of(known.reference.get()) == module;
}

Module* module_at(Module* parent, std::string path, std::string class_name) {
  Module*& found = tables->by_path[path];
  if (found == nullptr) {
    const std::uint64_t number = tables->next_number;
    found = &tables->all[number];
    ++tables->next_number;
    found->parent = parent;
    found->number = number;
    found->path = std::move(path);
  }
  found->class_name = std::move(class_name);
  return found;
}

// Returns the objects of the modules around, from the innermost outwards, with None for one that no longer exists. Null
// with a Python exception set on failure.
Owned objects_around(const Module* module) {
  Owned list(PyList_New(0));
  for (; list && module != nullptr; module = module->parent) {
    PyObject* const object = module->reference ? referent_of(module->reference.get()) : nullptr;
    if (PyList_Append(list.get(), object == nullptr ? Py_None : object) != 0) list.reset();
  }
  return list;
}

// Calls Python to find the module. On failure returns the module around, with a Python exception set.
Found find_module(Module* around, PyObject* object) {
  if (!tables->names) return {around};
  const Owned names = Owned::borrowed(tables->names.get());
  const Owned list = objects_around(around);
  const Owned found(list ? PyObject_CallFunctionObjArgs(names.get(), object, list.get(), nullptr) : nullptr);
  int steps = 0;
  unsigned char kept_in = 0;
  PyObject* name = nullptr;
  PyObject* class_name = nullptr;
  if (!found || PyArg_ParseTuple(found.get(), "iUUb", &steps, &name, &class_name, &kept_in) == 0) return {around};
  Module* parent = steps < 0 ? nullptr : around;
  for (; steps > 0 && parent != nullptr; --steps) parent = parent->parent;
  const std::string word = host::bytes_of(name);
  if (word.empty()) return {parent, kept_in};
  const std::string path = parent == nullptr ? word : parent->path + "." + word;
  return {module_at(parent, path, host::bytes_of(class_name)), kept_in, word.front() != '<'};
}

void remember(Table<Child, Known>& table, const Child& key, const Found& found) {
  if (table.is_full()) {
    table.keep_only([](const Child& child, const Known& known) { return is_known(known, child.object); });
  }
  table[key] = {reference_to(key.object), found.module, found.kept_in};
}

// Returns the module of this object, and its precision, or else that of the module around. A Python exception is set
// afterwards if the code that finds the name was interrupted.
Found module_of(const ModuleCall* call_around, PyObject* object) {
  Module* const around = call_around == nullptr ? nullptr : call_around->module;
  const std::uint8_t kept_around = call_around == nullptr ? std::uint8_t{0} : call_around->kept_in;
  const auto within = [=](Found found) {
    if (found.kept_in == 0) found.kept_in = kept_around;
    return found;
  };
  if (around == nullptr) {
    const Known* const last = tables->last.find({nullptr, object});
    if (last != nullptr && is_known(*last, object)) return within({last->module, last->kept_in});
  }
  const Child child{around, object};
  const Known* const known = tables->children.find(child);
  if (known != nullptr && is_known(*known, object)) [[likely]]
    return within({known->module, known->kept_in});
  const std::uint64_t times_forgotten = tables->times_forgotten;
  const Found found = find_module(around, object);
  drop_error();
  if (PyErr_Occurred() != nullptr) return {around, kept_around};
  Module* const module = found.module;
  if (module != nullptr) ++module->under_way;  // making a weak reference may collect garbage, which may run other code
  // If another thread has changed names or precisions meanwhile, the next call finds the module anew.
  if (tables->times_forgotten == times_forgotten) {
    remember(tables->children, child, found);
    // A part that is called alone later is kept as what is around it now.
    if (around != nullptr && module != nullptr) {
      remember(tables->last, {nullptr, object}, found.is_part ? within(found) : found);
    }
  }
  if (module != nullptr && module != around) module->reference = reference_to(object);
  if (module != nullptr) --module->under_way;
  return within(found);
}

std::unique_ptr<ModuleCall> opened(Module* module) {
  auto call = std::make_unique<ModuleCall>(module);
  open_calls.add(*call);
  return call;
}

// Opens the call of this object. Null with a Python exception set if the code that finds its name was interrupted.
std::unique_ptr<ModuleCall> opened_for(PyObject* object) {
  const Found found = module_of(open_calls.innermost(), object);
  if (PyErr_Occurred() != nullptr) return nullptr;
  std::unique_ptr<ModuleCall> call = opened(found.module);
  call->kept_in = found.kept_in;
  return call;
}

}  // namespace

ModuleCall* innermost_module_call() noexcept { return open_calls.innermost(); }

void set_module_names(PyObject* function) noexcept { tables->names = Owned::borrowed_or_null(function); }

std::unique_ptr<ModuleCall> enter_call(PyObject* module) { return opened_for(module); }

std::unique_ptr<ModuleCall> module_begins(PyObject* module) {
  prepare_stretches();
  std::unique_ptr<ModuleCall> call = opened_for(module);
  if (!call) return nullptr;
  const ModuleCall* const around = call->outer();
  call->is_in_backward = around == nullptr ? host::gradients_are_worked_out() : around->is_in_backward;
  note_stretch();
  call->begin = nanoseconds();
  return call;
}

void module_ends(std::unique_ptr<ModuleCall> call) noexcept {
  const ModuleCall* const outer = call->outer();
  const bool is_within_itself = outer != nullptr && outer->module == call->module;
  Module* const module = call->module;
  call->leave();
  note_stretch();
  if (module == nullptr || is_within_itself) return;
  const std::uint64_t end = nanoseconds();
  ++module->calls;
  module->nanoseconds += end - call->begin;
  note_event({.module = static_cast<std::int64_t>(module->number),
              .begin = call->begin,
              .end = end,
              .thread = thread_number()});
}

Module* module_of_gradient() {
  const std::uint64_t number = host::sequence_number_of_gradient();
  const auto after = std::upper_bound(stretches.begin(), stretches.end(), number,
                                      [](std::uint64_t value, const Stretch& one) { return value < one.from; });
  if (after == stretches.begin() || std::prev(after)->module < 0) return nullptr;
  const auto found = tables->all.find(static_cast<std::uint64_t>(std::prev(after)->module));
  return found == tables->all.end() ? nullptr : &found->second;
}

std::int64_t running_module() noexcept {
  const ModuleCall* const innermost = open_calls.innermost();
  return innermost == nullptr || innermost->module == nullptr ? -1
                                                              : static_cast<std::int64_t>(innermost->module->number);
}

std::int64_t running_place() noexcept {
  const std::int64_t number = running_module();
  const ModuleCall* const innermost = open_calls.innermost();
  if (number < 0 && (innermost == nullptr || innermost->kept_in == 0)) return -1;
  return ((number + 1) << 3) | innermost->kept_in;
}

std::unique_ptr<ModuleCall> enter_place(std::int64_t place) {
  const std::int64_t number = place < 0 ? -1 : (place >> 3) - 1;
  const auto found = number < 0 ? tables->all.end() : tables->all.find(static_cast<std::uint64_t>(number));
  std::unique_ptr<ModuleCall> block = opened(found == tables->all.end() ? nullptr : &found->second);
  block->kept_in = place < 0 ? std::uint8_t{0} : static_cast<std::uint8_t>(place & 7);
  block->has_frame = false;
  block->is_in_backward = host::gradients_are_worked_out();
  return block;
}

Module* module_named(const std::string& path) {
  const auto known = tables->by_path.find(path);
  return known != tables->by_path.end() ? known->second : module_at(nullptr, path, "");
}

std::vector<const Module*> all_modules() {
  std::vector<const Module*> all;
  for (const auto& [_, module] : tables->all) all.push_back(&module);
  return all;
}

const Module* module_numbered(std::uint64_t number) noexcept {
  const auto found = tables->all.find(number);
  return found == tables->all.end() ? nullptr : &found->second;
}

PyObject* objects_of(const Module* module) { return objects_around(module).release(); }

void forget_module_names() noexcept {
  ++tables->times_forgotten;
  tables->children.clear();
  tables->last.clear();
}

void forget_module_calls() {
  std::unordered_set<const Module*> needed;
  for (auto& [_, module] : tables->all) {
    module.calls = module.nanoseconds = 0;
    const bool is_needed =
        module.under_way != 0 || (module.reference && referent_of(module.reference.get()) != nullptr);
    for (const Module* one = is_needed ? &module : nullptr; one != nullptr; one = one->parent) needed.insert(one);
  }
  const auto is_kept = [&](const Child& child, const Known& known) {
    const auto may_stay = [&](const Module* module) { return module == nullptr || needed.contains(module); };
    return is_known(known, child.object) && may_stay(child.parent) && may_stay(known.module);
  };
  tables->children.keep_only(is_kept);
  tables->last.keep_only(is_kept);
  std::erase_if(tables->by_path, [&](const auto& entry) { return !needed.contains(entry.second); });
  std::erase_if(tables->all, [&](const auto& entry) { return !needed.contains(&entry.second); });
}

std::size_t known_modules() noexcept { return tables->all.size() + tables->children.count() + tables->last.count(); }

}  // namespace habana_mp::watch

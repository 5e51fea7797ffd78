#include "watch/modules.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <unordered_map>
#include <utility>

#include "errors.hpp"
#include "host/frames.hpp"
#include "host/modes.hpp"
#include "watch/records.hpp"
#include "watch/table.hpp"
#include "weakrefs.hpp"

namespace habana_mp::watch {

namespace {

thread_local OpenCall<ModuleCall> open_calls;

// The path that ran in this thread from this sequence number of autograd on; -1 stands for none.
struct Stretch {
  std::uint64_t from;
  std::int64_t path;
};
constexpr std::size_t most_stretches = 1 << 16;
thread_local std::vector<Stretch> stretches;

// Allocates what `note_stretch` needs in this thread.
void prepare_stretches() { stretches.reserve(most_stretches); }

// Notes that the innermost module runs from now on.
void note_stretch() noexcept {
  const std::uint64_t from = host::next_sequence_number();
  const ModuleCall* const innermost = open_calls.outer();
  const ModulePath* const running = innermost == nullptr ? nullptr : innermost->path();
  const std::int64_t path = running == nullptr ? -1 : static_cast<std::int64_t>(running->number);
  if (!stretches.empty() && stretches.back().path == path) return;
  if (!stretches.empty() && stretches.back().from == from) {  // autograd tracked no operation meanwhile
    stretches.back().path = path;
    return;
  }
  if (stretches.size() == stretches.capacity()) {
    stretches.erase(stretches.begin(), stretches.begin() + static_cast<std::ptrdiff_t>(stretches.size() / 2));
  }
  stretches.push_back({from, path});
}

// A module and the object that is called in it.
struct Child {
  std::uint64_t around = 0;  // 0 for no module
  PyObject* object = nullptr;
  bool operator==(const Child&) const = default;
  [[nodiscard]] std::size_t hash() const noexcept { return around * 31 + hash_of(object); }
};

struct Tables {
  Owned names;
  std::map<std::uint64_t, std::shared_ptr<ModulePath>> paths;  // by number
  std::uint64_t next_path = 0;
  std::unordered_map<std::string, ModulePath*> by_name;
  Table<Child, std::shared_ptr<RunningModule>> children;
  std::uint64_t next_module = 1;
  std::uint64_t times_forgotten = 0;
};
NeverDestroyed<Tables> tables;

Owned reference_to(PyObject* module) {
  Owned reference(PyWeakref_NewRef(module, nullptr));
  if (!reference) clear_error();  // a class without weak references; no other code ran
  return reference;
}

bool is_of(const RunningModule& module, PyObject* object) {
  return module.reference && referent_of(module.reference.get()) == object;
}

// True while all objects live.
bool may_run_again(const RunningModule& module) {
  for (const RunningModule* one = &module; one != nullptr; one = one->around.get()) {
    if (!one->reference || referent_of(one->reference.get()) == nullptr) return false;
  }
  return true;
}

const std::shared_ptr<ModulePath>& path_named(const std::string& name) {
  ModulePath*& known = tables->by_name[name];
  if (known == nullptr) {
    const std::uint64_t number = tables->next_path;
    std::shared_ptr<ModulePath>& made = tables->paths[number] = std::make_shared<ModulePath>();
    ++tables->next_path;
    made->number = number;
    made->name = name;
    known = made.get();
  }
  return tables->paths[known->number];
}

// Calls Python to find the path of an object. On failure returns that of the module around, with a Python exception
// set.
std::shared_ptr<ModulePath> find_path(const RunningModule* around, PyObject* object) {
  const auto path_of = [](const RunningModule* module) { return module == nullptr ? nullptr : module->path; };
  if (!tables->names) return path_of(around);
  const Owned names = Owned::borrowed(tables->names.get());
  const Owned list = objects_of(around);
  const Owned found(list ? PyObject_CallFunctionObjArgs(names.get(), object, list.get(), nullptr) : nullptr);
  int steps = 0;
  PyObject* name = nullptr;
  PyObject* class_name = nullptr;
  if (!found || PyArg_ParseTuple(found.get(), "iUU", &steps, &name, &class_name) == 0) return path_of(around);
  const RunningModule* parent = steps < 0 ? nullptr : around;
  for (; steps > 0 && parent != nullptr; --steps) parent = parent->around.get();
  std::shared_ptr<ModulePath> outer = path_of(parent);
  const std::string word = host::bytes_of(name);
  if (word.empty()) return outer;
  const std::shared_ptr<ModulePath>& path = path_named(outer ? outer->name + "." + word : word);
  path->class_name = host::bytes_of(class_name);
  return path;
}

// Returns the module that this object is within the running one, or null with a Python exception set if the code that
// finds its name was interrupted.
std::shared_ptr<RunningModule> called_in(const std::shared_ptr<RunningModule>& around, PyObject* object) {
  const Child child{around ? around->number : 0, object};
  const std::shared_ptr<RunningModule>* const known = tables->children.find(child);
  if (known != nullptr && is_of(**known, object)) [[likely]]
    return *known;
  for (const std::shared_ptr<RunningModule>* one = &around; *one; one = &(*one)->around) {
    if (is_of(**one, object)) return *one;
  }
  const std::uint64_t times_forgotten = tables->times_forgotten;
  auto made = std::make_shared<RunningModule>();
  made->around = around;
  made->path = find_path(around.get(), object);
  drop_error();
  if (PyErr_Occurred() != nullptr) return nullptr;
  made->reference = reference_to(object);
  made->number = tables->next_module++;
  // If another thread has changed names or precisions meanwhile, the next call finds the module anew.
  if (tables->times_forgotten == times_forgotten) {
    if (tables->children.is_full()) {
      tables->children.keep_only([](const Child&, const auto& module) { return may_run_again(*module); });
    }
    tables->children[child] = made;
  }
  return made;
}

std::unique_ptr<ModuleCall> opened(std::shared_ptr<RunningModule> module) {
  auto call = std::make_unique<ModuleCall>(std::move(module));
  call->enter(open_calls);
  return call;
}

}  // namespace

ModuleCall* innermost_module_call() noexcept { return open_calls.outer(); }

void set_module_names(PyObject* function) noexcept { tables->names = Owned::borrowed_or_null(function); }

std::unique_ptr<ModuleCall> enter_call(PyObject* module) {
  std::shared_ptr<RunningModule> called = called_in(running_module(), module);
  return called ? opened(std::move(called)) : nullptr;
}

std::unique_ptr<ModuleCall> module_begins(PyObject* module) {
  prepare_stretches();
  std::unique_ptr<ModuleCall> call = enter_call(module);
  if (!call) return nullptr;
  const ModuleCall* const around = call->outer();
  call->is_in_backward = around == nullptr ? host::gradients_are_worked_out() : around->is_in_backward;
  note_stretch();
  call->begin = nanoseconds();
  return call;
}

void module_ends(std::unique_ptr<ModuleCall> call) noexcept {
  const ModuleCall* const outer = call->outer();
  const std::shared_ptr<ModulePath> path = call->module->path;
  const bool is_within_itself = outer != nullptr && outer->path() == path.get();
  call->leave();
  note_stretch();
  if (!path || is_within_itself) return;
  const std::uint64_t end = nanoseconds();
  ++path->calls;
  path->nanoseconds += end - call->begin;
  note_event({.module = static_cast<std::int64_t>(path->number), .begin = call->begin, .end = end});
}

const ModulePath* path_of_gradient() {
  const std::uint64_t number = host::sequence_number_of_gradient();
  const auto after = std::upper_bound(stretches.begin(), stretches.end(), number,
                                      [](std::uint64_t value, const Stretch& one) { return value < one.from; });
  if (after == stretches.begin() || std::prev(after)->path < 0) return nullptr;
  return path_numbered(static_cast<std::uint64_t>(std::prev(after)->path));
}

std::shared_ptr<RunningModule> running_module() noexcept {
  const ModuleCall* const innermost = open_calls.outer();
  return innermost == nullptr ? nullptr : innermost->module;
}

std::unique_ptr<ModuleCall> enter_block(std::shared_ptr<RunningModule> module) {
  std::unique_ptr<ModuleCall> block = opened(std::move(module));
  block->has_frame = false;
  block->is_in_backward = host::gradients_are_worked_out();
  return block;
}

Owned objects_of(const RunningModule* module) {
  Owned list(PyList_New(0));
  for (; list && module != nullptr; module = module->around.get()) {
    PyObject* const object = module->reference ? referent_of(module->reference.get()) : nullptr;
    if (PyList_Append(list.get(), object == nullptr ? Py_None : object) != 0) list.reset();
  }
  return list;
}

void forget_module_names() noexcept {
  ++tables->times_forgotten;
  tables->children.clear();
}

const ModulePath* path_of_module(const std::string& name) { return path_named(name).get(); }

std::vector<std::shared_ptr<ModulePath>> all_paths() {
  std::vector<std::shared_ptr<ModulePath>> all;
  for (const auto& [_, path] : tables->paths) all.push_back(path);
  return all;
}

const ModulePath* path_numbered(std::uint64_t number) noexcept {
  const auto found = tables->paths.find(number);
  return found == tables->paths.end() ? nullptr : found->second.get();
}

void forget_module_calls() {
  tables->children.keep_only([](const Child&, const auto& module) { return may_run_again(*module); });
  std::erase_if(tables->paths, [](const auto& entry) {
    const std::shared_ptr<ModulePath>& path = entry.second;
    path->calls = path->nanoseconds = 0;
    const bool is_dropped = path.use_count() == 1;
    if (is_dropped) tables->by_name.erase(path->name);
    return is_dropped;
  });
}

std::size_t known_modules() noexcept { return tables->paths.size() + tables->children.count(); }

}  // namespace habana_mp::watch

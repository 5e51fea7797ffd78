// Tracks the modules whose forward runs, from the calls of nn.Module.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "owned.hpp"
#include "watch/open_calls.hpp"
#include "watch/places.hpp"

namespace habana_mp::engine {
struct RuleSet;
}

namespace habana_mp::watch {

// A path, as the report shows it.
struct ModulePath {
  std::uint64_t number = 0;  // in order of first call; never reused
  std::string name;
  std::string class_name;
  std::uint64_t calls = 0;
  std::uint64_t nanoseconds = 0;
};

// The rules in a module under the lists of a region; engine/modules.cpp finds them.
struct FoundRules {
  std::int64_t lists = 0;
  const engine::RuleSet* rules = nullptr;
  bool is_judged = true;  // false for those of an outermost module until one of its calls has returned
};

// An object that is called while certain other modules run. Its path and its rules depend on these objects alone. One
// that is called within itself is the same one again.
struct RunningModule {
  std::shared_ptr<RunningModule> around;
  Owned reference;                   // weak, to the object
  std::uint64_t number = 0;          // never reused
  std::shared_ptr<ModulePath> path;  // may be that of the module around; null if its name was not found
  std::vector<FoundRules> rules;
};

// A call of a module that is under way in this thread.
struct ModuleCall : OpenCall<ModuleCall> {
  explicit ModuleCall(std::shared_ptr<RunningModule> called) noexcept : module(std::move(called)) {}

  [[nodiscard]] const ModulePath* path() const noexcept { return module ? module->path.get() : nullptr; }

  std::shared_ptr<RunningModule> module;
  std::optional<std::int64_t> unjudged;  // lists whose rules in this module are judged when the call returns
  Owned uses;                            // then, a list of the uses of weights in the call (engine/seen_calls.hpp)
  std::uint64_t begin = 0;
  bool has_frame = true;  // false for a block that was deferred in that module and runs now
  bool is_in_backward = false;
  bool knows_caller = false;
  const Place* caller = nullptr;
  std::uint64_t caller_generation = 0;
};

ModuleCall* innermost_module_call() noexcept;

// Sets the Python function that finds a module's name. It is called with a module and the modules around it, from the
// innermost outwards, with None for one that no longer exists. It returns a tuple: the number of modules to go outwards
// to the parent (-1 for a root), the name (with dots) in the parent, or "" if the module counts as the parent itself,
// and the name of its class. Holds a reference; null for none.
void set_module_names(PyObject* function) noexcept;

// Begins the call of a module. Returns null with a Python exception set if the code that finds its name was
// interrupted.
std::unique_ptr<ModuleCall> module_begins(PyObject* module);
void module_ends(std::unique_ptr<ModuleCall> call) noexcept;
// The same without counts and times: the call ends when the result is destroyed.
std::unique_ptr<ModuleCall> enter_call(PyObject* module);

// Returns the path of the module that ran the operation whose gradient is computed now, or null if it is unknown.
const ModulePath* path_of_gradient();

// Returns the module that runs here, or null. A block that is deferred stores it.
std::shared_ptr<RunningModule> running_module() noexcept;
// Begins a block that was deferred in this module. It ends when the result is destroyed.
std::unique_ptr<ModuleCall> enter_block(std::shared_ptr<RunningModule> module);
// Returns a new list of the objects of a module and of those around it, from the innermost outwards, with None for one
// that no longer exists. Null with a Python exception set on failure.
Owned objects_of(const RunningModule* module);
// Makes the names and rules of all modules be found anew.
void forget_module_names() noexcept;

// Returns a path that comes from Python.
const ModulePath* path_of_module(const std::string& name);

// Returns the paths in order of first call.
std::vector<std::shared_ptr<ModulePath>> all_paths();
const ModulePath* path_numbered(std::uint64_t number) noexcept;
// Resets the counts, and drops the paths of modules that no longer exist.
void forget_module_calls();

// The number of entries in the tables, for tests.
std::size_t known_modules() noexcept;

}  // namespace habana_mp::watch

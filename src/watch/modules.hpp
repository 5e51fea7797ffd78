// Tracks the module whose forward runs, and its path, from the calls of nn.Module.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "owned.hpp"
#include "watch/open_calls.hpp"
#include "watch/places.hpp"

namespace habana_mp::watch {

// A module at a path. A shared module has one for each path under which it is called.
struct Module {
  Module* parent = nullptr;
  std::uint64_t number = 0;  // in order of first call; never reused
  std::string path;
  std::string class_name;
  Owned reference;  // weak, to the module that was called last under this path
  std::uint64_t calls = 0;
  std::uint64_t nanoseconds = 0;
  std::uint32_t under_way = 0;  // calls; the module is not dropped while there are any
};

// A call of a module that is under way in this thread.
struct ModuleCall : OpenCall<ModuleCall> {
  explicit ModuleCall(Module* called) noexcept : module(called) {
    if (module != nullptr) ++module->under_way;
  }
  ~ModuleCall() {
    if (module != nullptr) --module->under_way;
  }
  ModuleCall(const ModuleCall&) = delete;
  ModuleCall& operator=(const ModuleCall&) = delete;

  Module* module;
  std::uint64_t begin = 0;
  bool has_frame = true;  // false for a block that was deferred in that module and runs now
  bool is_in_backward = false;
  // How this module or one around it is kept, a number of habana_mp/policy/kept.py below 8; 0 if it is not kept.
  std::uint8_t kept_in = 0;
  bool knows_caller = false;
  const Place* caller = nullptr;
  std::uint64_t caller_generation = 0;
};

ModuleCall* innermost_module_call() noexcept;

// Sets the Python function that finds a module's name. It is called with a module and the modules around it, from the
// innermost outwards. It returns a tuple: the number of modules to go outwards to the parent (-1 for a root), the name
// (with dots) in the parent, or "" if the module counts as the parent itself, and the name of its class. Holds a
// reference; null for none.
void set_module_names(PyObject* function) noexcept;

// Begins the call of a module. Returns null with a Python exception set if the code that finds its name was
// interrupted.
std::unique_ptr<ModuleCall> module_begins(PyObject* module);
void module_ends(std::unique_ptr<ModuleCall> call) noexcept;
// The same without counts and times: the call ends when the result is destroyed.
std::unique_ptr<ModuleCall> enter_call(PyObject* module);

// Returns the module that ran the operation whose gradient is computed now, or null if it is unknown.
Module* module_of_gradient();

// Returns the number of the module that runs here, or -1.
std::int64_t running_module() noexcept;
// Returns the module that runs here and the precision in which it is kept, as one number, or -1 for no module. A block
// that is deferred stores it.
std::int64_t running_place() noexcept;
// Begins a block that was deferred at this place. It runs in no module if that one was dropped, and ends when
// the result is destroyed.
std::unique_ptr<ModuleCall> enter_place(std::int64_t place);
// Returns a new list of the objects of a module and of those around it, from the innermost outwards, with None for one
// that no longer exists. Null with a Python exception set on failure.
PyObject* objects_of(const Module* module);
// Makes the names of all modules be found anew.
void forget_module_names() noexcept;

// Returns the module of a path that comes from Python.
Module* module_named(const std::string& path);

// Returns the modules in order of first call.
std::vector<const Module*> all_modules();
const Module* module_numbered(std::uint64_t number) noexcept;
// Resets the counts, and drops modules that no longer exist.
void forget_module_calls();

// The number of entries in the tables, for tests.
std::size_t known_modules() noexcept;

}  // namespace habana_mp::watch

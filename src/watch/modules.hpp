// Which module's forward runs, and under which path: what nn.Module's calls tell.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "owned.hpp"
#include "watch/open_calls.hpp"
#include "watch/places.hpp"

namespace habana_mp::watch {

// A module at a path. Shared modules have one for each path under which they are called.
struct Module {
  Module* parent = nullptr;
  std::uint64_t number = 0;  // in order of first call; never given to another one
  std::string path;
  std::string class_name;
  Owned reference;  // a weak one, of the module that was called last under it
  std::uint64_t calls = 0;
  std::uint64_t nanoseconds = 0;
  std::uint32_t under_way = 0;  // calls; while there are any it is not dropped
};

// A call of a module that is under way in this thread.
struct ModuleCall : OpenCall<ModuleCall> {
  Module* module = nullptr;
  std::uint64_t begin = 0;
  std::uint64_t aside = 0;  // of the nanoseconds since then, those in which other greenlets ran
  bool has_frame = true;    // false: a block that was given away in that module, and runs now
  bool is_in_backward = false;
  bool knows_caller = false;
  const Place* caller = nullptr;
  std::uint64_t caller_generation = 0;
};

ModuleCall* innermost_module_call() noexcept;

// Python's part: called with a module, and those around it from the innermost outwards. It gives a tuple: how many of
// them to go outwards for the parent (-1: a root), the name (with dots) in it or "" where the module counts as the
// parent itself, and the name of its class. Held; null for none.
void set_module_names(PyObject* function) noexcept;

// The call of a module begins. Null with a Python exception set where code of the module's class was interrupted that
// tells its names.
std::unique_ptr<ModuleCall> module_begins(PyObject* module);
void module_ends(std::unique_ptr<ModuleCall> call) noexcept;

// In which module was the operation recorded whose gradient is worked out now? Null where that cannot be told.
Module* module_of_gradient();

// The number of the module that runs here, or -1: for what is given away to be run later.
std::int64_t running_module() noexcept;
// Begins a block that was given away in the module of that number. It runs in no module if that one was dropped.
std::unique_ptr<ModuleCall> enter_module(std::int64_t number);
void leave_module(std::unique_ptr<ModuleCall> block) noexcept;

// The one of a path, as Python tells it.
Module* module_named(const std::string& path);

// In order of first call.
std::vector<const Module*> all_modules();
const Module* module_numbered(std::uint64_t number) noexcept;
// Counts from zero. Modules that are gone are dropped.
void forget_module_calls();

// The number of entries in the tables, for tests.
std::size_t known_modules() noexcept;

}  // namespace habana_mp::watch

// Which module's forward runs, and under which path: what nn.Module's calls tell.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "owned.hpp"
#include "watch/places.hpp"

namespace habana_mp::watch {

// A module at a path. Shared modules have one for each path under which they are called.
struct Module {
  Module* parent = nullptr;
  std::size_t number = 0;  // in order of first call
  std::string path;
  std::string class_name;
  Owned reference;  // a weak one, of the module that was called last under it
  std::uint64_t calls = 0;
  std::uint64_t nanoseconds = 0;
};

// A call of a module that is under way in this thread.
struct ModuleCall {
  ModuleCall* outer = nullptr;
  Module* module = nullptr;
  std::uint64_t begin = 0;
  bool has_frame = true;  // false: a block that was given away in that module, and runs now
  bool is_in_backward = false;
  bool knows_caller = false;
  const Place* caller = nullptr;
};

ModuleCall* innermost_module_call() noexcept;

// Python's part: called with a module, and those around it from the innermost outwards. It gives a tuple: how many of
// them to go outwards for the parent (-1: a root), the name (with dots) in it or "" where the module counts as the
// parent itself, and the name of its class. Held; null for none.
void set_module_names(PyObject* function) noexcept;

// The call of a module begins and ends; `around` is in the caller's frame.
void module_begins(ModuleCall& around, PyObject* module);
void module_ends(ModuleCall& around) noexcept;

// In which module was the operation recorded whose gradient is worked out now? Null where that cannot be told.
Module* module_of_gradient() noexcept;

// The number of the module that runs here, or -1: for what is given away to be run later.
std::int64_t running_module() noexcept;
void enter_module(std::int64_t number);
void leave_module() noexcept;

// The one of a path, as Python tells it.
Module* module_named(const std::string& path);

const std::vector<Module*>& all_modules() noexcept;
// Counts from zero. The modules stay: calls of theirs may be under way.
void forget_module_calls() noexcept;

}  // namespace habana_mp::watch

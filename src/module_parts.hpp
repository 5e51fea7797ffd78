// What a part of the module, such as an accelerator, offers to Python beside the rooms: put in where it is there.
#pragma once

#include <vector>

#include "pybind.hpp"

namespace habana_mp {

struct ModulePart {
  const char* name;  // as `_core.accelerators` tells it
  void (*add_to)(pybind11::module_& module);
};

// Filled as the module is loaded.
inline std::vector<ModulePart>& module_parts() {
  static std::vector<ModulePart> all;
  return all;
}

}  // namespace habana_mp

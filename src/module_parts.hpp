// Optional parts of the module, such as an accelerator: they add functions to the module if they are compiled in.
#pragma once

#include <vector>

#include "pybind.hpp"

namespace habana_mp {

struct ModulePart {
  const char* name;  // as listed in `_core.accelerators`
  void (*add_to)(pybind11::module_& module);
};

// Filled while the module is loaded.
inline std::vector<ModulePart>& module_parts() {
  static std::vector<ModulePart> all;
  return all;
}

}  // namespace habana_mp

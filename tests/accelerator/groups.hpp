// The process group of the pretended accelerator.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace pretended {

void add_groups(pybind11::module_& m);

}  // namespace pretended

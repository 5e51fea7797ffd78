// What is watched beside the operations, while a policy is installed: torch.autocast, constructors of modules, what
// becomes a weight, what writes without telling.
#pragma once

#include <Python.h>

#include <vector>

namespace habana_mp::engine {

// Builtins that tell something about where the program is; watched while a policy is installed.
struct Builtins {
  PyObject* autocast_set_enabled;        // torch.set_autocast_enabled
  PyObject* autocast_set_dtype;          // torch.set_autocast_dtype
  PyObject* autocast_increment_nesting;  // torch.autocast_increment_nesting
  PyObject* autocast_decrement_nesting;  // torch.autocast_decrement_nesting
  PyObject* module_constructed;          // torch._C._log_api_usage_once, the first thing nn.Module.__init__ calls
  PyObject* make_subclass;               // Tensor._make_subclass, of which nn.Parameter is made
  PyObject* is_autocast_enabled;         // torch.is_autocast_enabled
  PyObject* to_dlpack;                   // torch._C._to_dlpack
  PyObject* to_dlpack_versioned;         // torch._C._to_dlpack_versioned; None before torch 2.9
  PyObject* set_version_counter;         // torch._C._autograd._unsafe_set_version_counter
  std::vector<PyObject*> writers;        // that write into their tensors without counting the versions up
};
// False with a Python exception set; then nothing has changed.
bool watch_builtins(const Builtins& builtins);
void stop_watching_builtins() noexcept;

}  // namespace habana_mp::engine

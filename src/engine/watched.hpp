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
  PyObject* data_address;                // torch._C._data_address; None where this torch lacks it
  PyObject* set_version_counter;         // torch._C._autograd._unsafe_set_version_counter
  PyObject* find_operator;               // torch._C._jit_get_operation
  PyObject* find_overload;               // torch._C._get_operation_overload
  std::vector<PyObject*> writers;  // that write into their tensors without counting the versions up, or share memory so
};
// False with a Python exception set; then nothing has changed.
bool watch_builtins(const Builtins& builtins);
// Watches what decides about tensors of modules: conversions of tensors by their own methods, and assignments to
// modules' attributes (nn.Module.__setattr__). The first function tells whether it can be done. False with an exception
// set; then nothing has changed.
bool may_watch_state(PyObject* module_set_attribute);
bool watch_state(PyObject* module_set_attribute);
// Stops watching all of these.
void stop_watching_builtins() noexcept;

// A writer that a list covers is not watched meanwhile: its target does what the watch would do. The first function
// returns true for a writer, whose watch has ended; the second one begins to watch it again.
bool suspend_writer(PyObject* object) noexcept;
void resume_writer(PyObject* object) noexcept;

}  // namespace habana_mp::engine

// Watches calls that are not operations, while a policy is installed: torch.autocast, constructors of modules,
// functions that make weights, and functions that write without incrementing the version counter.
#pragma once

#include <Python.h>

#include <vector>

namespace habana_mp::engine {

// Builtins whose calls show what the program does. They are watched while a policy is installed.
struct Builtins {
  PyObject* autocast_set_enabled;        // torch.set_autocast_enabled
  PyObject* autocast_set_dtype;          // torch.set_autocast_dtype
  PyObject* autocast_increment_nesting;  // torch.autocast_increment_nesting
  PyObject* autocast_decrement_nesting;  // torch.autocast_decrement_nesting
  PyObject* module_constructed;          // torch._C._log_api_usage_once, the first call in nn.Module.__init__
  PyObject* make_subclass;               // Tensor._make_subclass, which makes an nn.Parameter
  PyObject* is_autocast_enabled;         // torch.is_autocast_enabled
  PyObject* to_dlpack;                   // torch._C._to_dlpack
  PyObject* to_dlpack_versioned;         // torch._C._to_dlpack_versioned; None before torch 2.9
  PyObject* data_address;                // torch._C._data_address; None if this torch lacks it
  PyObject* set_version_counter;         // torch._C._autograd._unsafe_set_version_counter
  PyObject* find_operator;               // torch._C._jit_get_operation
  PyObject* find_overload;               // torch._C._get_operation_overload
  std::vector<PyObject*> writers;  // write into tensors or share their memory without incrementing version counters
};
// False with a Python exception set if one cannot be watched; then nothing has changed.
bool watch_builtins(const Builtins& builtins);
// The functions of nn.Module by which its attributes are assigned and read, and what is called with a module whose
// `__dict__` was assigned.
struct AttributeFunctions {
  PyObject* set;  // __setattr__
  PyObject* get;  // __getattr__
  PyObject* filled;
};
// Watches what changes the tensors of modules, and what gives them to other code: conversions by the tensors' own
// methods, and attributes of modules. `may_watch_state` returns true if that is possible. Both return false with an
// exception set if it is not, and change nothing.
bool may_watch_state(const AttributeFunctions& attributes);
bool watch_state(const AttributeFunctions& attributes);
// Sets the device types whose regions of torch.autocast count, a tuple or None: the stand-in for Gaudi has one device,
// and regions of others change nothing on a Gaudi machine.
void set_devices_of_regions(PyObject* device_types) noexcept;
// Stops watching all of these.
void stop_watching_builtins() noexcept;

// A writer that a list names is not watched while it is patched, since its target does the same. `suspend_writer` ends
// the watch and returns true if the object is a writer. `resume_writer` watches it again.
bool suspend_writer(PyObject* object) noexcept;
void resume_writer(PyObject* object) noexcept;

}  // namespace habana_mp::engine

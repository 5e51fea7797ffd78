// Taps calls that are not operations, while a policy is installed: torch.autocast, constructors of modules,
// functions that make weights, and functions that write without incrementing the version counter.
#pragma once

#include <Python.h>

#include <utility>
#include <vector>

namespace habana_mp::engine {

// Returns the paths of the tapped builtins in torch._C, each with whether a release may lack it.
std::vector<std::pair<const char*, bool>> paths_of_builtins();
// Taps these builtins, in the order of their paths (None for one that is missing), and writers: functions that write
// into tensors, or share their memory, without incrementing version counters. False with a Python exception set if one
// cannot be tapped; then nothing has changed.
bool tap_builtins(const std::vector<PyObject*>& objects, const std::vector<PyObject*>& added_writers);
// Taps conversions by the tensors' own methods, and assignments to attributes of modules by this function
// (nn.Module's `__setattr__`), unless it only checks that this is possible. If it is not, returns false with an
// exception set, and changes nothing.
bool tap_state(PyObject* set_function, bool only_checks);
// Sets the device types whose regions of torch.autocast count, a tuple or None: the stand-in for Gaudi has one device,
// and regions of others change nothing on a Gaudi machine.
void set_devices_of_regions(PyObject* device_types) noexcept;
// Stops tapping all of these.
void untap_builtins() noexcept;

// A writer that a list names is not tapped while it is patched, since its target does the same. `suspend_writer` ends
// the tap and returns true if the object is a writer. `resume_writer` taps it again.
bool suspend_writer(PyObject* object) noexcept;
void resume_writer(PyObject* object) noexcept;

// In its scope this object is as torch made it, if it is a writer.
class SuspendedWriter {
 public:
  explicit SuspendedWriter(PyObject* object) noexcept : writer_(suspend_writer(object) ? object : nullptr) {}
  ~SuspendedWriter() {
    if (writer_ != nullptr) resume_writer(writer_);
  }
  SuspendedWriter(const SuspendedWriter&) = delete;
  SuspendedWriter& operator=(const SuspendedWriter&) = delete;

 private:
  PyObject* writer_;
};

}  // namespace habana_mp::engine

// convert(within=...): the lists speak only while the forward of a module runs.
//
// Python's nn.Module calls `_call_impl` for each call of a module, whoever calls it. That function keeps its identity;
// its vectorcall slot is ours. `answering` below is what answers its calls: itself, or a function with the code that it
// had, where habana_mp/patches/tools/direct_calls.py exchanges its code.
#pragma once

#include <Python.h>

#include <optional>
#include <vector>

namespace habana_mp::engine {

// Can calls of this function be watched? If not, a Python exception says why.
bool may_watch_modules(PyObject* call_impl);

// From now on a call of `call_impl`, a Python function whose first argument is a module, is a place where convert's
// lists speak: of any module, or of these alone (borrowed, and told apart by their address). False with a Python
// exception set where the function's slot is not what it should be; then nothing has changed.
bool watch_modules(PyObject* call_impl, PyObject* answering, std::optional<std::vector<PyObject*>> modules);
void stop_watching_modules() noexcept;

// Can the watch be told which module runs? If not, a Python exception says why.
bool can_follow_modules(PyObject* call_impl);
// From now on it is. False with a Python exception set where it cannot be.
bool follow_modules(PyObject* call_impl, PyObject* answering);
void stop_following_modules() noexcept;

// True if the lists apply in every module; false if the user named modules.
bool lists_apply_in_any_module() noexcept;

// Would a call of this module, made here, be one where the lists begin to speak?
bool begins_to_speak(PyObject* module) noexcept;

}  // namespace habana_mp::engine

// Calls of modules: convert(within=...), where the lists apply only while the forward of a module runs, rules by module
// (module_rules.hpp), and the watch.
//
// torch calls `nn.Module._call_impl` for each call of a module. That function keeps its identity; its vectorcall slot
// holds a stub. Each call of it is run by `answering`: the function itself, or one with its former code if
// habana_mp/patches/tools/direct_calls.py has exchanged the code.
#pragma once

#include <Python.h>

#include <optional>
#include <vector>

#include "engine/model_results.hpp"

namespace habana_mp::engine {

// True if calls of this function can be tapped. Otherwise a Python exception that gives the reason is set.
bool may_wait_for_modules(PyObject* call_impl);

// Makes convert's lists apply during calls of `call_impl`, a Python function whose first argument is a module: for any
// module, or only for these (borrowed, compared by their address). False with a Python exception set if the function's
// slot is not as expected or there are too many rule sets; then nothing has changed.
bool wait_for_modules(PyObject* call_impl, PyObject* answering, std::optional<std::vector<PyObject*>> modules);
void stop_waiting_for_modules() noexcept;

// True if the running module can be reported to the watch. Otherwise a Python exception that gives the reason is set.
bool can_follow_modules(PyObject* call_impl);
// Starts to report the running module. False with a Python exception set if that is impossible.
bool follow_modules(PyObject* call_impl, PyObject* answering);
void stop_following_modules() noexcept;

// Makes the rules depend on the running module; `resolver`: see set_module_rules. False with a Python exception set if
// that is impossible.
bool put_rules_in_modules(PyObject* call_impl, PyObject* answering, PyObject* resolver);
void take_rules_out_of_modules() noexcept;

// Makes what leaves a model float32, or no longer (model_results.hpp). False with a Python exception set if the
// function's slot is not as expected.
bool convert_model_results(PyObject* call_impl, PyObject* answering, ResultSettings settings);
void stop_converting_model_results() noexcept;

// True after wait_for_modules.
bool lists_wait_for_a_module() noexcept;

// True if the lists begin to apply with a call of this module that is made here.
bool begins_to_apply_lists(PyObject* module) noexcept;

}  // namespace habana_mp::engine

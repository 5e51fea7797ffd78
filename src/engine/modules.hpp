// Calls of modules: convert(within=...), where the lists apply only while the forward of a module runs, rules by
// module, results of models, and the watch.
//
// torch calls `nn.Module._call_impl` for each call of a module. That function keeps its identity; its vectorcall slot
// holds a stub. Each call of it is run by `answering`: the function itself, or one with its former code if
// habana_mp/patches/tools/direct_calls.py has exchanged the code.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/arguments.hpp"
#include "engine/region.hpp"
#include "host/reader.hpp"
#include "owned.hpp"

namespace habana_mp::engine {

// ---- what leaves a model becomes float32: convert(results="fp32") ----

// Settings of the conversion. `holds` and `convert` are Python functions for arguments and results that
// are no tensors: the first one tells if there is a tensor of the lower kind in one, the second one returns the result.
struct ResultSettings {
  Kind lower = Kind::other;  // other: they stay as they are
  Owned holds;
  Owned convert;
};

// The converted tensors so far.
struct ModelResults {
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;  // of the new tensors
};
extern ModelResults model_results;

// A call of a module. The outermost one is that of a model.
class ModelCall {
 public:
  // The first argument is the module.
  explicit ModelCall(const Arguments& arguments);
  ~ModelCall();
  ModelCall(const ModelCall&) = delete;
  ModelCall& operator=(const ModelCall&) = delete;

  [[nodiscard]] bool is_outermost() const noexcept { return is_outermost_; }
  // Returns the result of the call as it leaves the model.
  PyObject* leave(PyObject* result) const;

 private:
  bool is_outermost_;
  Kind lower_ = Kind::other;  // of the results that become float32; other: an argument has it
  Owned convert_;             // held, since the model may call `restore`
  bool used_before_ = false;
};

// Notes that an operation of the running model uses a Parameter in lower precision: the results stay what they are.
void note_lower_parameters(const Arguments& arguments) noexcept;

// ---- the reasons for a stub ----

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

// Makes the rules depend on the running module. `resolver` is called with the objects of the running module and of the
// modules around it, from the innermost outwards, and the number of the region whose lists the rules change (0:
// convert's lists, -1: convert's lists where `within` does not apply them). It returns the number of a rule set, or 0
// if the lists stay as they are. Rules found by an earlier function are forgotten. False with a Python exception set if
// that is impossible.
bool put_rules_in_modules(PyObject* call_impl, PyObject* answering, PyObject* resolver);
void take_rules_out_of_modules() noexcept;

// Makes what leaves a model float32, or no longer. False with a Python exception set if the
// function's slot is not as expected.
bool convert_model_results(PyObject* call_impl, PyObject* answering, ResultSettings settings);
void stop_converting_model_results() noexcept;

// True after wait_for_modules.
bool lists_wait_for_a_module() noexcept;

// True if the lists begin to apply with a call of this module that is made here.
bool begins_to_apply_lists(PyObject* module) noexcept;

// ---- rules by module: lines of lists with a pattern of modules, and modules that hmp.keep keeps in a precision ----
//
// The engine knows no pattern. Python finds the rules of a module when it is first called within certain others; the
// engine remembers them. A module's call then runs under its rule set, as a region does.

// Returns the rules for the innermost call of a module that is open in this thread, that of `module`. Nullopt with a
// Python exception set if the function raised.
std::optional<const RuleSet*> rules_in_module(PyObject* module);

}  // namespace habana_mp::engine

// Calls of modules: convert(within=...), where the lists apply only while the forward of a module runs, rules by
// module, results of models, and the watch.
//
// torch calls `nn.Module._call_impl` for each call of a module. That function keeps its identity; its vectorcall slot
// holds a stub.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/arguments.hpp"
#include "engine/region.hpp"
#include "host/reader.hpp"
#include "owned.hpp"
#include "watch/modules.hpp"

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
// Counts a tensor that leaves a model, and what it became.
void count_model_result(PyObject* before, PyObject* after);

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

// ---- the tap, and what it is for: each of these may be set while calls are tapped or not ----

// True if calls of this function can be tapped. Otherwise a Python exception that gives the reason is set.
bool can_tap_modules(PyObject* call_impl);
// Taps calls of `call_impl`, a Python function whose first argument is a module. False with a Python exception set if
// that is impossible.
bool tap_modules(PyObject* call_impl);
void untap_modules() noexcept;

// Makes convert's lists apply during calls of any module, or only of these (borrowed, compared by their address).
void wait_for_modules(std::optional<std::vector<PyObject*>> modules) noexcept;
void stop_waiting_for_modules() noexcept;

// Reports the running module to the watch, or no longer.
void follow_modules(bool follows) noexcept;

// Makes the rules depend on the running module, or for null no longer. `resolver` is called with the objects of the
// running module and of the modules around it, from the innermost outwards, and the number of the region whose lists
// the rules change (0: convert's lists, -1: convert's lists where `within` does not apply them). It returns the number
// of a rule set, or 0 if the lists stay as they are. What an earlier function found holds until
// `watch::forget_module_names`. `judge` is called when the first call of an outermost module returns, with the same and
// the uses of weights in that call (notice_weights), or None. It may raise.
void put_rules_in_modules(PyObject* resolver, PyObject* judge) noexcept;

// Makes what leaves a model float32, or no longer.
void convert_model_results(ResultSettings settings) noexcept;

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
// Calls `judge` for this call, which returns now, if its rules are unjudged. False with a Python exception set if it
// raised.
bool judge_rules(watch::ModuleCall& call);

}  // namespace habana_mp::engine

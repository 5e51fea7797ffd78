// Replaces torch's functions with stubs: C functions in their vectorcall slot, methods also in their definition,
// `tensor[key]` and `tensor[key] = value` in the slots of the type. The objects keep their identity.
#pragma once

#include <string>
#include <vector>

#include "engine/region.hpp"
#include "engine/target.hpp"

namespace habana_mp::engine {

struct CoveredObject {
  PyObject* object;  // borrowed
  PyObject* shown;   // borrowed: the object that the log shows, usually the same
  std::string operation;
  const Rule* listed;
  const Rule* unlisted;
};

// Replaces all installed rules by those of these entries. Checks everything before it changes anything, so a failure
// (false with a Python exception set) leaves torch as it was. With `within_modules` the lists lower operations only
// while the rule set of modules applies. `policy` is the object that `installed_policy` then returns.
bool install(std::vector<CoveredObject> entries, bool within_modules, PyObject* policy);

// Returns what `install` was given and `uninstall` has not yet taken out of torch, borrowed, or null.
PyObject* installed_policy() noexcept;

// Returns the rules of a region's lists: `listed` of each entry, and `unlisted` while the lists are suspended. Also
// patches those objects that are not patched yet, without a rule of convert's. Null with a Python exception set on
// failure; then nothing has changed.
RuleSet* make_rule_set(const std::vector<CoveredObject>& entries, RuleSet::Device device, PyObject* after_tracked_cast,
                       const std::string& name);

// Returns the rules in some module: those of `base` (null: convert's lists) with these changes. Otherwise as above.
RuleSet* make_module_rule_set(const RuleSet* base, const std::vector<CoveredObject>& changed, const std::string& name);

// Returns the rules of exact code where the current lists apply: nothing is lowered by a list. Null with a Python
// exception set on failure.
RuleSet* exact_rule_set();

// Patches the objects of a set again after an uninstall. False with a Python exception set on failure; then nothing has
// changed.
bool put_in(RuleSet& set);

// Patches these objects too, so that the watch sees those of their calls that no rule names. The rules of the entries
// are ignored. Objects of an earlier call that are not among them are restored, unless convert or a region needs them.
// Checks everything before it changes anything. False with a Python exception set on failure.
bool observe(std::vector<CoveredObject> entries);

// Restores every slot and definition. False with a Python exception set when memory runs out; then nothing has changed.
bool uninstall();

// Returns the number of objects that are patched now.
std::size_t installed_count() noexcept;
// Returns how often rules have been put into torch. A caller compares two counts to see if a call that raised has
// changed anything.
std::uint64_t change_count() noexcept;

}  // namespace habana_mp::engine

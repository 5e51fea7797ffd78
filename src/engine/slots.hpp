// Interposition: torch's own C functions answered from their vectorcall slot, its methods also from their definition,
// `tensor[key] = value` from the type's slot. The objects stay what they are.
#pragma once

#include <string>
#include <vector>

#include "engine/region.hpp"
#include "engine/target.hpp"

namespace habana_mp::engine {

struct CoveredObject {
  PyObject* object;  // borrowed
  PyObject* shown;   // borrowed: what the log shows; most often the object itself
  std::string operation;
  Rule listed;
  Rule unlisted;
};

// Replaces whatever is installed by these entries. Everything is checked before the first store, so that a failure
// (false, with a Python exception set) leaves torch as it was. With `within_modules` the lists lower nothing but where
// the rule set of modules is in force.
bool install(const std::vector<CoveredObject>& entries, bool within_modules);

// The rules of a region's lists: `listed` for each entry, where the object's own rule for silent lists is `unlisted`.
// What is not answered yet is put in, without a rule of convert's. Null with a Python exception set on failure, and
// then nothing has changed.
RuleSet* make_rule_set(const std::vector<CoveredObject>& entries, RuleSet::Device device, PyObject* after_recorded_cast,
                       const std::string& name);

// Puts in again what uninstall has taken out.
bool put_in(RuleSet& set);

// From now on calls of these are answered too, and the watch sees those that no rule names; their rules are not looked
// at. Those of an earlier call that are not among them are taken out, unless convert or a region wants them. Everything
// is checked before the first store.
bool observe(const std::vector<CoveredObject>& entries);

// Puts every slot and definition back. False with a Python exception set where there is no memory; then nothing has
// changed.
bool uninstall();

// How many objects are answered by us right now.
std::size_t installed_count() noexcept;
// How often rules have been put into torch: of a call that raised it tells whether it had changed anything.
std::uint64_t change_count() noexcept;

}  // namespace habana_mp::engine

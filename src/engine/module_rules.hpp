// Rules by module: lines of lists with a pattern of modules, and modules that hmp.keep keeps in a precision.
//
// The engine knows no pattern. Python finds the rules of a module when it is first called within certain others; the
// engine remembers them. A module's call then runs under its rule set, as a region does.
#pragma once

#include <Python.h>

#include <optional>

#include "engine/region.hpp"

namespace habana_mp::engine {

// Sets the Python function that finds the rules in a module. It is called with the objects of the running module and of
// the modules around it, from the innermost outwards, and the number of the region whose lists the rules change (0:
// convert's lists, -1: convert's lists where `within` does not apply them). It returns the number of a rule set, or 0
// if the lists stay as they are. Holds a reference; null for none. Rules found by an earlier function are forgotten.
void set_module_rules(PyObject* function) noexcept;

// Returns the rules for the innermost call of a module that is open in this thread, that of `module`. Nullopt with a
// Python exception set if the function raised.
std::optional<const RuleSet*> rules_in_module(PyObject* module);

}  // namespace habana_mp::engine

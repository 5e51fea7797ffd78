// Common to the bindings of the engine.
#pragma once

#include <string>
#include <tuple>
#include <vector>

#include "engine/slots.hpp"
#include "errors.hpp"
#include "pybind.hpp"

namespace habana_mp {

namespace py = pybind11;

inline void or_throw(bool succeeded) {
  if (!succeeded) throw py::error_already_set();
}

// Returns the result of a call. Throws if it is null.
inline py::object called(PyObject* result) {
  if (result == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(result);
}

inline PyObject* pointer_or_null(const py::object& object) { return object.is_none() ? nullptr : object.ptr(); }

// (object, the object that the log shows for it, operation, rule of the lists, number of the line that made it, rule
// while the lists are suspended)
using PlannedTarget = std::tuple<py::object, py::object, std::string, engine::Rule, std::uint32_t, engine::Rule>;

inline std::vector<engine::CoveredObject> entries_of(const std::vector<PlannedTarget>& plan) {
  std::vector<engine::CoveredObject> entries;
  entries.reserve(plan.size());
  for (const auto& [object, shown, operation, listed, line, unlisted] : plan) {
    engine::Rule rule = listed;
    if (rules::has_line(rule.reason)) rule.line = line;
    entries.push_back({object.ptr(), shown.ptr(), operation, engine::intern(rule), engine::intern(unlisted)});
  }
  return entries;
}

}  // namespace habana_mp

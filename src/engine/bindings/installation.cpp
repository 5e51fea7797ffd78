// What is installed in torch, and the counts of its calls.
#include <string>
#include <vector>

#include "engine/bindings/bindings.hpp"
#include "engine/results.hpp"
#include "engine/slots.hpp"
#include "engine/state.hpp"
#include "engine/taps.hpp"
#include "engine/target.hpp"
#include "host/callables.hpp"
#include "rules/decision.hpp"

namespace habana_mp {

using engine::Target;

namespace {

void install(const std::vector<PlannedTarget>& plan, const py::object& policy, bool within_modules) {
  or_throw(engine::install(entries_of(plan), within_modules, policy.ptr()));
}

void observe(const std::vector<PlannedTarget>& plan) { or_throw(engine::observe(entries_of(plan))); }

// Decodes a name or a repr. Users write these, so they may contain lone surrogates, encoded as three bytes each.
py::object text_of_bytes(const std::string& bytes) {
  return called(PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "surrogatepass"));
}

// Returns a row for each operation that was called and each decision about it: (operation, representation, precision,
// reason, calls, casts, bytes, casts of weights that are too small to be cached).
py::list counts() {
  struct Row {
    std::string operation;
    std::string representation;
    rules::Decision decision;
    engine::Count count;
  };
  // No Python object is created during the iteration, since garbage collection may free functions with their own rules.
  std::vector<Row> found;
  engine::for_each_count([&found](const engine::Counted& one) {
    found.push_back({one.operation, one.representation, one.decision, one.count});
  });
  py::list rows;
  for (const Row& row : found) {
    rows.append(py::make_tuple(text_of_bytes(row.operation), text_of_bytes(row.representation),
                               rules::name(row.decision.precision), rules::row_of(row.decision.reason).word,
                               row.count.calls, row.count.casts, row.count.bytes, row.count.small));
  }
  return rows;
}

py::object unpatched_copy(const py::object& builtin) {
  if (!PyCFunction_CheckExact(builtin.ptr())) throw py::type_error("unpatched_copy needs a builtin function");
  const engine::SuspendedWriter suspended(builtin.ptr());
  Owned equivalent = host::unpatched_copy(builtin.ptr(), engine::find_target(builtin.ptr()));
  or_throw(static_cast<bool>(equivalent));
  return py::reinterpret_steal<py::object>(equivalent.release());
}

}  // namespace

void register_installation(py::module_& module) {
  module.def("install", &install, py::arg("plan"), py::arg("policy"), py::kw_only(), py::arg("within_modules"));
  module.def("installed_policy", [] {
    PyObject* const policy = engine::installed_policy();
    return policy == nullptr ? py::object(py::none()) : py::reinterpret_borrow<py::object>(policy);
  });
  module.def("observe", &observe);
  module.def("set_equivalent_functions", [](const py::dict& functions) {
    for (const auto& [method, function] : functions) engine::set_equivalent_function(method.ptr(), function.ptr());
  });
  module.def("install_in_disabled_regions", &engine::install_in_disabled_regions);
  module.def("uninstall", [] { or_throw(engine::uninstall()); });
  module.def("installed_count", &engine::installed_count);
  module.def("change_count", &engine::change_count);
  module.def("counts", &counts);
  module.def("reset_counts", &engine::reset_counts);
  module.def("lower_updates", [] { return engine::lower_updates; });
  module.def("unpatched_copy", &unpatched_copy);
  module.def("is_covered", [](const py::object& object) {
    const Target* target = engine::find_target(object.ptr());
    return target != nullptr && target->installed;
  });
  module.def("can_cover", [](const py::object& object) { return host::can_cover(object.ptr()); });
}

}  // namespace habana_mp

// Python functions that are called through the engine.
#include <string>
#include <vector>

#include "engine/bindings/bindings.hpp"
#include "engine/call.hpp"
#include "engine/rule.hpp"
#include "engine/target.hpp"
#include "host/callables.hpp"
#include "host/frames.hpp"
#include "pybind.hpp"
#include "rules/decision.hpp"

namespace habana_mp {

using engine::Rule;
using engine::Target;

namespace {

py::object answer(Target& target, const py::tuple& arguments, const py::dict& keywords) {
  const auto given = static_cast<Py_ssize_t>(arguments.size());
  std::vector<PyObject*> values;
  values.reserve(arguments.size() + keywords.size());
  for (const auto& value : arguments) values.push_back(value.ptr());
  py::tuple names(keywords.size());
  std::size_t i = 0;
  for (const auto& [name, value] : keywords) {
    names[i++] = py::reinterpret_borrow<py::object>(name);
    values.push_back(value.ptr());
  }
  return called(engine::answer(target, {values.data(), given, keywords.empty() ? nullptr : names.ptr()}));
}

// A Python function of torch that lists may name. Its calls go through the engine and follow the rules of the policy
// and of the regions. `called` runs the function's original code.
class Composite {
 public:
  Composite(const py::object& function, const py::object& called, const std::string& operation)
      : target_(engine::target_for(function.ptr(), host::CallableKind::composite, operation.c_str(), function.ptr())) {
    if (target_ == nullptr) throw py::error_already_set();
    target_->called = Owned::borrowed(called.ptr());
  }
  py::object call(const py::tuple& arguments, const py::dict& keywords) {
    return answer(*target_, arguments, keywords);
  }

 private:
  Target* target_;  // never freed
};

// A Python function with its own rule, called through the engine. The log shows `shown`, to which the engine holds no
// reference; the engine calls `function`.
class Function {
 public:
  Function(const py::object& function, const py::object& shown, const py::str& operation, const Rule& rule)
      : rule_(interned_for_wrapped(rule)),
        target_(engine::make_function_target(function.ptr(), shown.ptr(), host::bytes_of(operation.ptr()))) {
    if (target_ == nullptr) throw py::error_already_set();
    target_->listed = rule_;
  }
  ~Function() { engine::drop_function_target(target_); }
  Function(const Function&) = delete;
  Function& operator=(const Function&) = delete;

  py::object call(const py::tuple& arguments, const py::dict& keywords) {
    return answer(*target_, arguments, keywords);
  }

 private:
  static const Rule* interned_for_wrapped(Rule rule) {
    rule.reason = rules::Reason::op_wrap;
    return engine::intern(rule);
  }

  const Rule* rule_;
  Target* target_;
};

Composite make_composite(const py::object& function, const py::object& called, const std::string& operation) {
  return Composite(function, called, operation);
}

Function make_function(const py::object& function, const py::object& shown, const py::str& operation,
                       const Rule& rule) {
  return Function(function, shown, operation, rule);
}

}  // namespace

void register_functions(py::module_& module) {
  py::class_<Function> function(module, "Function", "A Python function that is called through the engine.");
  function.def("__init__", &Constructor<make_function>::call, is_constructor, py::arg("function"), py::arg("shown"),
               py::arg("operation"), py::arg("rule"));
  function.def("call", &Function::call);
  py::class_<Composite> composite(module, "Composite", "A Python function of torch's that lists may cover.");
  composite.def("__init__", &Constructor<make_composite>::call, is_constructor, py::arg("function"), py::arg("called"),
                py::arg("operation"));
  composite.def("call", &Composite::call);
}

}  // namespace habana_mp

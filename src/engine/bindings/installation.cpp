// The rules of operations, what is installed in torch, and the counts of its calls.
#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/bindings/bindings.hpp"
#include "engine/call.hpp"
#include "engine/known_tensors.hpp"
#include "engine/products.hpp"
#include "engine/slots.hpp"
#include "engine/state.hpp"
#include "engine/taps.hpp"
#include "engine/target.hpp"
#include "host/frames.hpp"

namespace habana_mp {

using engine::Rule;
using engine::Target;

namespace {

// Returns the value that a table has for a name.
template <typename Value, std::size_t size>
Value named(const std::pair<std::string_view, Value> (&table)[size], std::string_view name, const char* what) {
  const auto found = std::ranges::find(table, name, [](const auto& row) { return row.first; });
  if (found == std::end(table)) throw std::invalid_argument("unknown " + (what + (": " + std::string(name))));
  return found->second;
}

constexpr std::pair<std::string_view, rules::Action> actions[] = {
    {"none", rules::Action::none},         {"precision", rules::Action::precision},
    {"widest", rules::Action::widest},     {"in_place", rules::Action::in_place},
    {"scalars", rules::Action::scalars},   {"first_input", rules::Action::first_input},
    {"refused", rules::Action::refused},   {"left", rules::Action::left},
    {"operands", rules::Action::operands},
};
constexpr std::pair<std::string_view, Kind> precisions[] = {
    {"bf16", Kind::bf16}, {"fp16", Kind::f16}, {"fp32", Kind::f32}};
constexpr std::pair<std::string_view, bool rules::Rule::*> traits[] = {
#define HABANA_MP_NAMED(name) {#name, &rules::Rule::name},
    HABANA_MP_TRAITS(HABANA_MP_NAMED)
#undef HABANA_MP_NAMED
};
constexpr std::pair<std::string_view, PyObject * engine::Conditions::*> conditions_by_name[] = {
    {"makes_product", &engine::Conditions::makes_product},
    {"is_fused", &engine::Conditions::is_fused},
    {"wrong_in_bf16", &engine::Conditions::wrong_in_bf16},
    {"sums", &engine::Conditions::adds_up},
};
constexpr std::pair<std::string_view, engine::ProductForm> forms[] = {
    {"", engine::ProductForm::none},
    {"linear", engine::ProductForm::linear},
    {"addmm", engine::ProductForm::addmm},
    {"mm", engine::ProductForm::mm},
    {"matmul", engine::ProductForm::matmul},
    {"mv", engine::ProductForm::mv},
    {"addmv", engine::ProductForm::addmv},
    {"bmm", engine::ProductForm::bmm},
    {"convolution", engine::ProductForm::convolution},
    {"transposed_convolution", engine::ProductForm::transposed_convolution},
    {"rounds_within", engine::ProductForm::rounds_within},
    {"other", engine::ProductForm::other},
};
static_assert(std::size(forms) == engine::product_forms);

engine::ProductForm form_named(std::string_view name) { return named(forms, name, "form of a product"); }

rules::Reason reason_named(std::string_view word) {
  const auto found =
      std::ranges::find(rules::reasons, word, [](const auto& row) { return std::string_view(row.word); });
  if (found == rules::reasons.end()) throw std::invalid_argument("unknown reason: " + std::string(word));
  return static_cast<rules::Reason>(found - rules::reasons.begin());
}

// Returns a borrowed reference to the one permanent copy of this value. It is never freed, since a running call may
// still read it after another policy is installed.
PyObject* immortal_or_null(const py::object& names_or_function) {
  static PyObject* const all = checked(PyDict_New());
  PyObject* known = PyDict_SetDefault(all, names_or_function.ptr(), names_or_function.ptr());
  if (known == nullptr) throw py::error_already_set();
  return known;
}

// Returns null for an empty tuple.
PyObject* immortal_or_null(const py::tuple& names) {
  return names.empty() ? nullptr : immortal_or_null(py::object(names));
}

// Returns the engine::Castable with these values.
engine::Castable make_castable(std::uint64_t positions, const py::tuple& kept_keywords, std::uint64_t raised_positions,
                               const py::tuple& raised_keywords, std::uint64_t off_cpu_positions,
                               const py::tuple& off_cpu_keywords) {
  // A call reads the keywords only if a position is set. If only keywords are given, this sets a position that no call
  // has.
  constexpr std::uint64_t no_position = std::uint64_t{1} << 63U;
  if (raised_positions == 0 && !raised_keywords.empty()) raised_positions = no_position;
  if (off_cpu_positions == 0 && !off_cpu_keywords.empty()) off_cpu_positions = no_position;
  return {.positions = positions,
          .kept_keywords = immortal_or_null(kept_keywords),
          .raised_positions = raised_positions,
          .raised_keywords = immortal_or_null(raised_keywords),
          .off_cpu_positions = off_cpu_positions,
          .off_cpu_keywords = immortal_or_null(off_cpu_keywords)};
}

Rule make_rule(const std::string& action, const std::string& precision, const std::string& why,
               const std::vector<std::string_view>& words, const std::optional<engine::Castable>& castable,
               const py::tuple& target_keywords,
               const std::optional<std::pair<std::string, std::uint8_t>>& sparse_gradient,
               const std::map<std::string, py::object>& conditions, const std::string& form) {
  Rule rule;
  rule.action = named(actions, action, "action");
  if (rule.action == rules::Action::precision) rule.to = named(precisions, precision, "precision");
  rule.reason = reason_named(why);
  for (const std::string_view word : words) rule.*named(traits, word, "trait") = true;
  if (castable) rule.castable = *castable;
  rule.castable.target_keywords = immortal_or_null(target_keywords);
  if (sparse_gradient) {
    rule.conditions.sparse_keyword = immortal_or_null(py::make_tuple(sparse_gradient->first));
    rule.conditions.sparse_position = sparse_gradient->second;
  }
  for (const auto& [name, function] : conditions) {
    PyObject*& place =
        name == "in_rows" ? rule.execution.in_rows : rule.conditions.*named(conditions_by_name, name, "condition");
    place = immortal_or_null(function);
  }
  rule.execution.form = form_named(form);
  return rule;
}

// A Python function whose calls go through the engine: one of torch that lists may name, which follows the rules of the
// policy and of the regions and whose target is never freed, or a Function.
class Called {
 public:
  explicit Called(Target* target) : target_(target) { or_throw(target != nullptr); }
  py::object call(const py::tuple& arguments, const py::dict& keywords) {
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
    return called(engine::answer(*target_, {values.data(), given, keywords.empty() ? nullptr : names.ptr()}));
  }

 protected:
  Target* target_;
};

// `called` runs the function's original code.
Called make_composite(const py::object& function, const py::object& called, const std::string& operation) {
  Target* target = engine::target_for(function.ptr(), host::CallableKind::composite, operation.c_str(), function.ptr());
  if (target != nullptr) target->called = Owned::borrowed(called.ptr());
  return Called(target);
}

// A Python function with its own rule. The log shows `shown`, to which the engine holds no reference; the engine calls
// `function`.
struct Function : Called {
  using Called::Called;
  ~Function() { engine::drop_function_target(target_); }
  Function(const Function&) = delete;
  Function& operator=(const Function&) = delete;
};

Function make_function(const py::object& function, const py::object& shown, const py::str& operation, Rule rule) {
  rule.reason = rules::Reason::op_wrap;
  const Rule* const listed = engine::intern(rule);
  Target* target = engine::make_function_target(function.ptr(), shown.ptr(), host::bytes_of(operation.ptr()));
  if (target != nullptr) target->listed = listed;
  return Function(target);
}

void install(const std::vector<PlannedTarget>& plan, const py::object& policy, bool within_modules) {
  or_throw(engine::install(entries_of(plan), within_modules, policy.ptr()));
}

void observe(const std::vector<PlannedTarget>& plan) { or_throw(engine::observe(entries_of(plan))); }

// Returns a row for each operation that was called and each decision about it: (operation, representation, precision,
// reason, line, calls, casts, bytes, casts of weights that no cache saves).
py::list counts() {
  py::list rows;
  for (const engine::Counted& row : engine::counts()) {
    rows.append(py::make_tuple(text_of_bytes(row.operation), text_of_bytes(row.representation),
                               rules::name(row.decision.precision), rules::row_of(row.decision.reason).word,
                               row.decision.line, row.count.calls, row.count.casts, row.count.bytes, row.count.needed));
  }
  return rows;
}

py::object result_or_none(Owned made) {
  or_throw(made || PyErr_Occurred() == nullptr);
  return made ? py::reinterpret_steal<py::object>(made.release()) : py::none();
}

py::object multiply(const py::object& input, const py::object& weight, const py::object& bias, bool float32_result) {
  PyObject* const values[] = {input.ptr(), weight.ptr(), bias.ptr()};
  return result_or_none(
      engine::multiply(engine::ProductForm::linear, {values, 3, nullptr}, host::kind_of(input.ptr()), float32_result));
}

py::object multiply_batches(const py::object& one, const py::object& other) {
  PyObject* const values[] = {one.ptr(), other.ptr()};
  return result_or_none(
      engine::multiply(engine::ProductForm::matmul, {values, 2, nullptr}, host::kind_of(one.ptr()), false));
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
  py::class_<engine::Castable>(module, "Castable", "Which arguments of an operation may be cast.")
      .def("__init__", &Constructor<make_castable>::call, is_constructor, py::kw_only(), py::arg("positions"),
           py::arg("kept_keywords"), py::arg("raised_positions"), py::arg("raised_keywords"),
           py::arg("off_cpu_positions"), py::arg("off_cpu_keywords"));
  py::class_<Rule>(module, "Rule", "What a policy says of one operation.")
      .def("__init__", &Constructor<make_rule>::call, is_constructor, py::kw_only(), py::arg("action"),
           py::arg("precision") = "", py::arg("why"), py::arg("traits") = std::vector<std::string_view>(),
           py::arg("castable") = std::nullopt, py::arg("target_keywords") = py::tuple(),
           py::arg("sparse_gradient") = std::nullopt, py::arg("conditions") = std::map<std::string, py::object>(),
           py::arg("product_form") = "");
  module.def(
      "set_products",
      [](bool multiplies_bf16, bool multiplies_f16, const std::map<std::string, py::object>& tracked,
         const py::object& widened, const py::object& with_rounded_gradient) {
        engine::ProductSettings wanted{multiplies_bf16,
                                       multiplies_f16,
                                       {},
                                       Owned::borrowed(widened.ptr()),
                                       Owned::borrowed(with_rounded_gradient.ptr())};
        for (const auto& [form, function] : tracked) {
          wanted.tracked[static_cast<std::size_t>(form_named(form))] = Owned::borrowed(function.ptr());
        }
        const engine::ProductSettings former = std::exchange(*engine::product_settings, std::move(wanted));
      },
      py::arg("multiplies_bf16"), py::arg("multiplies_f16"), py::arg("tracked"), py::arg("widened"),
      py::arg("with_rounded_gradient"));
  module.def("multiply", &multiply, py::arg("input"), py::arg("weight"), py::arg("bias"), py::arg("float32_result"));
  module.def("multiply_batches", &multiply_batches, py::arg("one"), py::arg("other"));
  py::tuple names(std::size(traits));
  for (std::size_t i = 0; i < std::size(traits); ++i) names[i] = std::string(traits[i].first);
  module.attr("traits") = names;
  py::class_<Function>(module, "Function", "A Python function that is called through the engine.")
      .def("__init__", &Constructor<make_function>::call, is_constructor, py::arg("function"), py::arg("shown"),
           py::arg("operation"), py::arg("rule"))
      .def("call", &Function::call);
  py::class_<Called>(module, "Composite", "A Python function of torch's that lists may cover.")
      .def("__init__", &Constructor<make_composite>::call, is_constructor, py::arg("function"), py::arg("called"),
           py::arg("operation"))
      .def("call", &Called::call);
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
  module.def("can_cover", [](const py::object& object) { return host::can_cover(object.ptr()); });
}

}  // namespace habana_mp

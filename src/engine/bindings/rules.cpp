// The rules of operations.
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
#include "engine/products.hpp"
#include "engine/rule.hpp"
#include "engine/state.hpp"
#include "engine/target.hpp"
#include "errors.hpp"
#include "pybind.hpp"
#include "rules/decision.hpp"
#include "weights/cache.hpp"

namespace habana_mp {

using engine::Rule;

namespace {

rules::Action action_of(const std::string& name) {
  if (name == "precision") return rules::Action::precision;
  if (name == "widest") return rules::Action::widest;
  if (name == "in_place") return rules::Action::in_place;
  if (name == "first_input") return rules::Action::first_input;
  if (name == "scalars") return rules::Action::scalars;
  if (name == "refused") return rules::Action::refused;
  if (name == "none") return rules::Action::none;
  throw std::invalid_argument("unknown action: " + name);
}

Kind precision_of(const std::string& name) {
  if (name == "bf16") return Kind::bf16;
  if (name == "fp16") return Kind::f16;
  if (name == "fp32") return Kind::f32;
  throw std::invalid_argument("unknown precision: " + name);
}

// Returns the reason of a rule: `why`, or the reason that follows from the action if `why` is empty.
rules::Reason reason_of(rules::Action action, const std::string& why) {
  if (why == "no_kernel") return rules::Reason::no_kernel;
  if (why == "parts") return rules::Reason::parts;
  if (why == "float32_result") return rules::Reason::float32_result;
  if (!why.empty()) throw std::invalid_argument("unknown reason: " + why);
  switch (action) {
    case rules::Action::widest:
      return rules::Reason::widest;
    case rules::Action::in_place:
      return rules::Reason::in_place;
    case rules::Action::first_input:
    case rules::Action::scalars:
      return rules::Reason::first_input;
    default:
      return rules::Reason::list;
  }
}

constexpr struct {
  std::string_view name;
  bool rules::Rule::*member;
} traits[] = {
#define HABANA_MP_NAMED(name) {#name, &rules::Rule::name},
    HABANA_MP_TRAITS(HABANA_MP_NAMED)
#undef HABANA_MP_NAMED
};

void set_trait(Rule& rule, std::string_view name) {
  const auto found = std::ranges::find(traits, name, [](const auto& trait) { return trait.name; });
  if (found == std::end(traits)) throw std::invalid_argument("unknown trait: " + std::string(name));
  rule.*found->member = true;
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

constexpr struct {
  std::string_view name;
  PyObject* engine::Conditions::*member;
} conditions_by_name[] = {
    {"makes_product", &engine::Conditions::makes_product},
    {"is_fused", &engine::Conditions::is_fused},
    {"wrong_in_bf16", &engine::Conditions::wrong_in_bf16},
    {"sums", &engine::Conditions::adds_up},
};

void set_condition(Rule& rule, const std::string& name, const py::object& function) {
  if (name == "in_rows") {
    rule.execution.in_rows = immortal_or_null(function);
    return;
  }
  const auto found = std::ranges::find(conditions_by_name, name, [](const auto& one) { return one.name; });
  if (found == std::end(conditions_by_name)) throw std::invalid_argument("unknown condition: " + name);
  rule.conditions.*found->member = immortal_or_null(function);
}

engine::ProductForm form_named(std::string_view name) {
  static constexpr std::string_view names[] = {
      "", "linear", "addmm", "mm", "matmul", "bmm", "convolution", "transposed_convolution", "other"};
  static_assert(std::size(names) == engine::product_forms);
  const auto found = std::ranges::find(names, name);
  if (found == std::end(names)) throw std::invalid_argument("unknown form of a product: " + std::string(name));
  return static_cast<engine::ProductForm>(found - std::begin(names));
}

Rule make_rule(const std::string& action, const std::string& precision, const std::string& why,
               const std::vector<std::string_view>& words, const std::optional<engine::Castable>& castable,
               const py::tuple& target_keywords,
               const std::optional<std::pair<std::string, std::uint8_t>>& sparse_gradient,
               const std::map<std::string, py::object>& conditions, const std::string& form) {
  Rule rule;
  rule.action = action_of(action);
  if (rule.action == rules::Action::precision) rule.to = precision_of(precision);
  rule.reason = reason_of(rule.action, why);
  for (const std::string_view word : words) set_trait(rule, word);
  if (castable) rule.castable = *castable;
  rule.castable.target_keywords = immortal_or_null(target_keywords);
  if (sparse_gradient) {
    rule.conditions.sparse_keyword = immortal_or_null(py::make_tuple(sparse_gradient->first));
    rule.conditions.sparse_position = sparse_gradient->second;
  }
  for (const auto& [name, function] : conditions) set_condition(rule, name, function);
  rule.execution.form = form_named(form);
  return rule;
}

}  // namespace

void register_rules(py::module_& module) {
  py::class_<engine::Castable> castable(module, "Castable", "Which arguments of an operation may be cast.");
  castable.def("__init__", &Constructor<make_castable>::call, is_constructor, py::kw_only(), py::arg("positions"),
               py::arg("kept_keywords"), py::arg("raised_positions"), py::arg("raised_keywords"),
               py::arg("off_cpu_positions"), py::arg("off_cpu_keywords"));
  py::class_<Rule> rule(module, "Rule", "What a policy says of one operation.");
  rule.def("__init__", &Constructor<make_rule>::call, is_constructor, py::kw_only(), py::arg("action"),
           py::arg("precision") = "", py::arg("why") = "", py::arg("traits") = std::vector<std::string_view>(),
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
  py::tuple names(std::size(traits));
  for (std::size_t i = 0; i < std::size(traits); ++i) names[i] = std::string(traits[i].name);
  module.attr("traits") = names;
}

}  // namespace habana_mp

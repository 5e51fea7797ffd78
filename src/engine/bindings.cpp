#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "c_functions.hpp"
#include "engine/call.hpp"
#include "engine/hooks.hpp"
#include "engine/known_tensors.hpp"
#include "engine/modules.hpp"
#include "engine/region.hpp"
#include "engine/slots.hpp"
#include "engine/state.hpp"
#include "engine/watched.hpp"
#include "errors.hpp"
#include "host/aten.hpp"
#include "host/callers.hpp"
#include "host/casts_inside.hpp"
#include "host/greenlets.hpp"
#include "host/inside.hpp"
#include "host/ledger.hpp"
#include "host/modes.hpp"
#include "host/symbols.hpp"
#include "host/team.hpp"
#include "host/torch_api.hpp"
#include "host/watching.hpp"
#include "instances.hpp"
#include "pybind.hpp"
#include "tensor/cast.hpp"
#include "weights/cache.hpp"
#include "weights/escapes.hpp"

namespace py = pybind11;

namespace habana_mp {

namespace {

using engine::Rule;
using engine::Target;
using engine::thread_state;

void or_throw(bool succeeded) {
  if (!succeeded) throw py::error_already_set();
}

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

// The properties of an operation that `policy/rules.py` passes by name.
constexpr struct {
  std::string_view name;
  void (*set)(Rule& rule);
} traits[] = {
    {"saturates", [](Rule& rule) { rule.saturates = true; }},
    {"saturates_tensors", [](Rule& rule) { rule.execution.saturates_tensors = true; }},
    {"promotes", [](Rule& rule) { rule.promotes = true; }},
    {"gives_dimensions", [](Rule& rule) { rule.gives_dimensions = true; }},
    {"views_one", [](Rule& rule) { rule.views_one = true; }},
    {"is_elementwise", [](Rule& rule) { rule.is_elementwise = true; }},
    {"is_product", [](Rule& rule) { rule.is_product = true; }},
    {"leaves_points", [](Rule& rule) { rule.leaves_points = true; }},
    {"products_inside", [](Rule& rule) { rule.products_inside = true; }},
    {"is_not_repeated", [](Rule& rule) { rule.may_repeat = false; }},
    {"counts_no_version", [](Rule& rule) { rule.counts_no_version = true; }},
    {"caches_weights", [](Rule& rule) { rule.execution.caches_weights = true; }},
    {"is_recurrent", [](Rule& rule) { rule.execution.is_recurrent = true; }},
    {"casts_inside", [](Rule& rule) { rule.execution.casts_inside = true; }},
    {"wrong_if_strided", [](Rule& rule) { rule.conditions.wrong_if_strided = true; }},
};

void set_trait(Rule& rule, std::string_view name) {
  const auto found = std::ranges::find(traits, name, [](const auto& trait) { return trait.name; });
  if (found == std::end(traits)) throw std::invalid_argument("unknown trait: " + std::string(name));
  found->set(rule);
}

// Returns a borrowed reference to the one permanent copy of this value. It is never freed, since a running call may
// still read it after another policy is installed.
PyObject* kept(const py::object& names_or_function) {
  static PyObject* const all = checked(PyDict_New());
  PyObject* known = PyDict_SetDefault(all, names_or_function.ptr(), names_or_function.ptr());
  if (known == nullptr) throw py::error_already_set();
  return known;
}

// Returns null for an empty tuple.
PyObject* kept(const py::tuple& names) { return names.empty() ? nullptr : kept(py::object(names)); }

// Returns the engine::Castable with these values.
engine::Castable make_castable(std::uint64_t positions, const py::tuple& kept_keywords, std::uint64_t raised_positions,
                               const py::tuple& raised_keywords, std::uint64_t off_cpu_positions,
                               const py::tuple& off_cpu_keywords) {
  Reserve::fill();
  // A call reads the keywords only if a position is set. If only keywords are given, this sets a position that no call
  // has.
  constexpr std::uint64_t no_position = std::uint64_t{1} << 63U;
  if (raised_positions == 0 && !raised_keywords.empty()) raised_positions = no_position;
  if (off_cpu_positions == 0 && !off_cpu_keywords.empty()) off_cpu_positions = no_position;
  return {.positions = positions,
          .kept_keywords = kept(kept_keywords),
          .raised_positions = raised_positions,
          .raised_keywords = kept(raised_keywords),
          .off_cpu_positions = off_cpu_positions,
          .off_cpu_keywords = kept(off_cpu_keywords)};
}

void set_condition(Rule& rule, const std::string& name, const py::object& function) {
  PyObject* question = kept(function);
  if (name == "makes_product") {
    rule.only_with_product = true;
    rule.conditions.makes_product = question;
  } else if (name == "is_fused") {
    rule.may_be_fused = true;
    rule.conditions.is_fused = question;
  } else if (name == "wrong_in_bf16") {
    rule.may_be_wrong = true;
    rule.conditions.wrong_in_bf16 = question;
  } else if (name == "sums") {
    rule.may_add_up = true;
    rule.conditions.adds_up = question;
  } else if (name == "in_rows") {
    rule.execution.in_rows = question;
  } else {
    throw std::invalid_argument("unknown question: " + name);
  }
}

Rule make_rule(const std::string& action, const std::string& precision, const std::string& why,
               const std::vector<std::string_view>& words, const std::optional<engine::Castable>& castable,
               const py::tuple& target_keywords,
               const std::optional<std::pair<std::string, std::uint8_t>>& sparse_gradient,
               const std::map<std::string, py::object>& conditions, const std::string& packs,
               const std::optional<std::pair<std::string, std::uint8_t>>& terms) {
  Reserve::fill();
  Rule rule;
  rule.action = action_of(action);
  if (rule.action == rules::Action::precision) rule.to = precision_of(precision);
  rule.reason = reason_of(rule.action, why);
  for (const std::string_view word : words) set_trait(rule, word);
  if (castable) rule.castable = *castable;
  rule.castable.target_keywords = kept(target_keywords);
  if (sparse_gradient) {
    rule.conditions.sparse_keyword = kept(py::make_tuple(sparse_gradient->first));
    rule.conditions.sparse_position = sparse_gradient->second;
  }
  for (const auto& [name, function] : conditions) set_condition(rule, name, function);
  if (terms) {
    rule.conditions.terms_keyword = kept(py::make_tuple(terms->first));
    rule.conditions.terms_position = terms->second;
  }
  rule.execution.packs = weights::packs_named(packs);
  return rule;
}

py::object called(PyObject* result) {
  if (result == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(result);
}

// Returns the result of `call`, made in this state, and restores the previous state. Throws if the call raised.
template <typename Call>
py::object in_state(const engine::CastState& wanted, const Call& call) {
  const engine::CastState before = engine::exchange_state(wanted);
  auto result = py::reinterpret_steal<py::object>(call());
  HeldError held;
  engine::exchange_state(before);
  held.restore();
  if (!result) throw py::error_already_set();
  return result;
}

// Returns the result of `call`, made while the lists are suspended. If no number is left that tells torch.compile so,
// casts are disabled instead.
template <typename Call>
py::object with_lists_suspended(const Call& call) {
  engine::CastState wanted = engine::current_state();
  wanted.suspended_until_tracking = false;
  if (engine::number_of_suspension()) {
    wanted.lists_suspended = true;
  } else {
    clear_error();
    wanted.disabled = true;
  }
  return in_state(wanted, call);
}

// Returns the result of the backward of a Python function. torch.autocast does not apply in a backward, so convert's
// lists are suspended there. They apply again while autograd tracks operations, since such code repeats a forward. In
// an open region the lists apply throughout.
py::object call_backward(Values values) {
  const auto function = py::reinterpret_borrow<py::object>(values[0]);
  const auto arguments = argument<py::tuple>(values[1]);
  const auto keywords = argument<py::dict>(values[2]);
  engine::CastState wanted = engine::current_state();
  const bool falls_silent = engine::policy_is_installed && wanted.region == nullptr && !wanted.lists_suspended;
  if (!falls_silent || !engine::number_of_suspension(true)) {
    clear_error();
    return called(PyObject_Call(function.ptr(), arguments.ptr(), keywords.ptr()));
  }
  wanted.lists_suspended = wanted.suspended_until_tracking = true;
  return in_state(wanted, [&] { return PyObject_Call(function.ptr(), arguments.ptr(), keywords.ptr()); });
}

py::object call_without_casts_inside(Values values) {
  const host::NoCastsInside off;
  return called(PyObject_CallOneArg(values[0], values[1]));
}

py::object call_with_lists_suspended(Values values) {
  return with_lists_suspended([&] { return PyObject_CallOneArg(values[0], values[1]); });
}

py::object call_compiled(Values values) {
  const auto arguments = argument<py::tuple>(values[1]);
  const auto keywords = argument<py::dict>(values[2]);
  return with_lists_suspended([&] {
    ++thread_state.compiled_runs;
    PyObject* result = PyObject_Call(values[0], arguments.ptr(), keywords.ptr());
    --thread_state.compiled_runs;
    return result;
  });
}

// The values are (function, its argument, the tensors that it writes to).
py::object call_writer(Values values) {
  const auto written = argument<py::list>(values[2]);
  py::object result;
  {
    const weights::UncountedWrites writing;
    result = py::reinterpret_steal<py::object>(PyObject_CallOneArg(values[0], values[1]));
  }
  HeldError held;
  for (const py::handle& tensor : written) weights::tensor_escapes(tensor.ptr(), false);
  held.restore();
  if (!result) throw py::error_already_set();
  return result;
}

// (object, the object that the log shows for it, operation, rule of the lists, rule while the lists are suspended)
using PlannedTarget = std::tuple<py::object, py::object, std::string, Rule, Rule>;

std::vector<engine::CoveredObject> entries_of(const std::vector<PlannedTarget>& plan) {
  std::vector<engine::CoveredObject> entries;
  entries.reserve(plan.size());
  for (const auto& [object, shown, operation, listed, unlisted] : plan) {
    entries.push_back({object.ptr(), shown.ptr(), operation, listed, unlisted});
  }
  return entries;
}

void install(const std::vector<PlannedTarget>& plan, bool within_modules) {
  or_throw(engine::install(entries_of(plan), within_modules));
}

void observe(const std::vector<PlannedTarget>& plan) { or_throw(engine::observe(entries_of(plan))); }

host::WatchedFunction counted;
std::size_t calls_of_counted = 0;

PyObject* counting_stub(PyObject*, PyObject* const* values, std::size_t flagged_count, PyObject* keywords) {
  ++calls_of_counted;
  return counted.call(values, flagged_count, keywords);
}

// Returns the result of `during()`, and the number of calls of `function` that reached its slot meanwhile.
std::pair<py::object, std::size_t> count_calls(const py::object& function, const py::object& answering,
                                               const py::function& during) {
  host::MemoryMap memory;
  if (counted.is_watched() || !host::WatchedFunction::check(function.ptr(), memory)) {
    throw std::runtime_error("the calls of this function cannot be counted");
  }
  calls_of_counted = 0;
  counted.watch(function.ptr(), answering.ptr(), from_c<counting_stub>);
  auto result = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(during.ptr()));
  counted.stop();
  if (!result) throw py::error_already_set();
  return {std::move(result), calls_of_counted};
}

// The values are (function, the function to call if that one is not watched, arguments, keywords).
py::object call_by_slot(Values values) {
  const auto arguments = argument<py::tuple>(values[2]);
  const auto keywords = argument<py::dict>(values[3]);
  PyObject* const called = host::WatchedFunction::is_watched_by_anybody(values[0]) ? values[0] : values[1];
  auto result = py::reinterpret_steal<py::object>(PyObject_Call(called, arguments.ptr(), keywords.ptr()));
  if (!result) throw py::error_already_set();
  return result;
}

void watch_modules(const py::object& call_impl, const py::object& answering,
                   const std::optional<std::vector<py::object>>& modules) {
  std::optional<std::vector<PyObject*>> among;
  if (modules.has_value()) {
    among.emplace();
    for (const py::object& module : *modules) among->push_back(module.ptr());
  }
  or_throw(engine::watch_modules(call_impl.ptr(), answering.ptr(), std::move(among)));
}

std::uint64_t make_region(const std::vector<PlannedTarget>& plan, bool on_cpu, const std::string& name,
                          const py::object& after_tracked_cast) {
  const auto device = on_cpu ? engine::RuleSet::Device::cpu : engine::RuleSet::Device::accelerator;
  PyObject* after = after_tracked_cast.is_none() ? nullptr : after_tracked_cast.ptr();
  const engine::RuleSet* set = engine::make_rule_set(entries_of(plan), device, after, name);
  or_throw(set != nullptr);
  return set->number;
}

engine::RuleSet& region(std::uint64_t number) {
  engine::RuleSet* set = engine::rule_set(number);
  if (set == nullptr) throw std::invalid_argument("there is no region of that number");
  return *set;
}

// The values are (owner, number). Returns false if the region belongs to an earlier installation. This may write to the
// log, which runs code outside this package, so it is a plain function (c_functions.hpp).
py::object enter_region(Values values) {
  const std::uint64_t number = number_argument(values[1]);
  const engine::RuleSet* set = number == 0 ? nullptr : &region(number);
  if (set != nullptr && set->installation != engine::installation_number()) return py::bool_(false);
  engine::enter_region(values[0], set);
  return py::bool_(true);
}

py::object leave_region(Values values) {
  if (!engine::leave_region(values[0])) {
    throw std::runtime_error(
        "a block of `disable_casts` or `autocast` is left that was not entered in this thread or greenlet, or was left "
        "already");
  }
  return py::none();
}

py::object exchange_state(Values values) {
  return py::int_(engine::pack(engine::exchange_state(engine::unpack(number_argument(values[0])))));
}

void watch_builtins(const py::object& set_enabled, const py::object& set_dtype, const py::object& increment,
                    const py::object& decrement, const py::object& module_constructed, const py::object& make_subclass,
                    const py::object& is_autocast_enabled, const py::object& to_dlpack,
                    const py::object& to_dlpack_versioned, const py::object& data_address,
                    const py::object& set_version_counter, const py::object& find_operator,
                    const py::object& find_overload, const py::tuple& writers) {
  std::vector<PyObject*> held;
  for (const auto& writer : writers) held.push_back(writer.ptr());
  or_throw(engine::watch_builtins({set_enabled.ptr(), set_dtype.ptr(), increment.ptr(), decrement.ptr(),
                                   module_constructed.ptr(), make_subclass.ptr(), is_autocast_enabled.ptr(),
                                   to_dlpack.ptr(), to_dlpack_versioned.ptr(), data_address.ptr(),
                                   set_version_counter.ptr(), find_operator.ptr(), find_overload.ptr(), held}));
}

void set_recognised(const py::tuple& steps, const py::dict& worker_namespace, const py::object& made_of_lowered,
                    const py::object& autocast_entered, const py::tuple& codes_of_regions, const py::object& custom_fwd,
                    const py::object& custom_fwd_asks, const py::object& custom_bwd_state, const py::tuple& inside,
                    const py::tuple& between, const py::tuple& through, const py::object& operator_found,
                    const py::object& module_calls) {
  const auto held = [](const py::object& one) { return Owned::borrowed(one.ptr()); };
  engine::set_recognised({held(steps), held(worker_namespace), held(made_of_lowered), held(autocast_entered),
                          held(codes_of_regions), held(custom_fwd), held(custom_fwd_asks), held(custom_bwd_state),
                          held(inside), held(between), held(through), held(operator_found), held(module_calls)});
}

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
                               rules::name(row.decision.precision), rules::word(row.decision.reason), row.count.calls,
                               row.count.casts, row.count.bytes, row.count.small));
  }
  return rows;
}

py::object unpatched_copy(const py::object& builtin) {
  if (!PyCFunction_CheckExact(builtin.ptr())) throw py::type_error("unpatched_copy needs a builtin function");
  Owned equivalent = host::unpatched_copy(builtin.ptr(), engine::find_target(builtin.ptr()));
  or_throw(static_cast<bool>(equivalent));
  return py::reinterpret_steal<py::object>(equivalent.release());
}

std::vector<std::array<const char*, 5>> assumptions() {
  std::vector<std::array<const char*, 5>> rows;
  for (const host::Assumption* one : host::ledger()) {
    const char* state = one->state() == host::Assumption::State::holds   ? "holds"
                        : one->state() == host::Assumption::State::fails ? "does not hold"
                                                                         : "not asked";
    rows.push_back({one->name(), one->assumed(), one->check(), one->otherwise(), state});
  }
  return rows;
}

std::vector<std::pair<const char*, bool>> symbols() {
  std::vector<std::pair<const char*, bool>> rows;
  for (const host::Symbol& one : host::known_symbols()) rows.emplace_back(one.name, host::is_declared(one));
  return rows;
}

py::object cast_in_block(const py::object& tensor, const py::object& dtype) {
  const Kind to = host::kind_of_dtype(dtype.ptr());
  Owned made = is_floating(to) ? tensor::cast_in_block(tensor.ptr(), to) : nullptr;
  return made ? py::reinterpret_steal<py::object>(made.release()) : py::none();
}

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
  PyObject* result = engine::answer(target, {values.data(), given, keywords.empty() ? nullptr : names.ptr()});
  if (result == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(result);
}

// A Python function of torch that lists may name. Its calls go through the engine and follow the rules of the policy
// and of the regions. `called` runs the function's original code.
class Composite {
 public:
  Composite(const py::object& function, const py::object& called, const std::string& operation)
      : target_(engine::target_for(function.ptr(), host::Shape::composite, operation.c_str(), function.ptr())) {
    if (target_ == nullptr) throw py::error_already_set();
    Reserve::fill();
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
    Reserve::fill();
    rule.reason = rules::Reason::op_wrap;
    return engine::intern(rule);
  }

  const Rule* rule_;
  Target* target_;
};

// The values are (arguments, keywords).
template <typename Called>
py::object call_through_engine(PyObject* self, Values values) {
  return py::handle(self).cast<Called&>().call(argument<py::tuple>(values[0]), argument<py::dict>(values[1]));
}

}  // namespace

void register_engine(py::module_& module) {
  py::class_<engine::Castable> castable(module, "Castable", "Which arguments of an operation may be cast.");
  castable.def(py::init(&make_castable), py::kw_only(), py::arg("positions"), py::arg("kept_keywords"),
               py::arg("raised_positions"), py::arg("raised_keywords"), py::arg("off_cpu_positions"),
               py::arg("off_cpu_keywords"));
  py::class_<Rule> rule(module, "Rule", "What a policy says of one operation.");
  rule.def(py::init(&make_rule), py::kw_only(), py::arg("action"), py::arg("precision") = "", py::arg("why") = "",
           py::arg("traits") = std::vector<std::string_view>(), py::arg("castable") = std::nullopt,
           py::arg("target_keywords") = py::tuple(), py::arg("sparse_gradient") = std::nullopt,
           py::arg("conditions") = std::map<std::string, py::object>(), py::arg("packs") = "",
           py::arg("terms") = std::nullopt);

  module.def("bind_torch", [] {
    static bool bound = false;
    if (bound) return;
    or_throw(host::bind_torch());
    host::bind_exchange();
    or_throw(host::bind_reader());
    host::bind_modes();
    or_throw(engine::bind_flags());
    host::bind_callers();
    host::bind_inside();
    host::bind_held_memory();
    host::bind_aten();
    host::bind_casts_inside();
    host::bind_team();
    bound = true;
  });
  module.def(
      "reader", [] { return host::name(host::way); }, "How tensors are read: layout, dlpack or attribute.");
  module.def("reads_flags_in_place",
             [] { return engine::flag_of_torch.is_read_in_place() && engine::below_autograd.is_read_in_place(); });
  module.def("looks_inside", &host::can_look_inside);
  module.def("assumptions", &assumptions,
             "The ledger: name, what is assumed, how it is checked, what happens otherwise, state.");
  module.def("symbols", &symbols,
             "Functions of torch's libraries by name, and whether torch's headers declare them so.");
  module.def("install", &install, py::arg("plan"), py::kw_only(), py::arg("within_modules"));
  module.def("observe", &observe);
  module.def("set_equivalent_functions", [](const py::dict& functions) {
    for (const auto& [method, function] : functions) engine::set_equivalent_function(method.ptr(), function.ptr());
  });
  module.def("watch_builtins", &watch_builtins);
  module.def("set_recognised", &set_recognised);
  module.def("construction_begins",
             [](const py::object& module_) { or_throw(engine::construction_begins(module_.ptr())); });
  module.def("set_hook", [](const py::dict& dictionary, const py::object& key, const py::object& hook,
                            const py::object& caller, const py::str& called) {
    const int done = engine::set_hook(dictionary.ptr(), key.ptr(), hook.is_none() ? nullptr : hook.ptr(), caller.ptr(),
                                      called.ptr());
    or_throw(done >= 0);
    return done == 1;
  });
  module.def("install_in_disabled_regions", &engine::install_in_disabled_regions);
  module.def("uninstall", [] { or_throw(engine::uninstall()); });
  module.def("installed_count", &engine::installed_count);
  module.def("change_count", &engine::change_count);
  module.def("counts", &counts);
  module.def("set_tracked_cast", [](const py::object& function) {
    tensor::set_tracked_cast(function.is_none() ? nullptr : function.ptr());
  });
  module.def("cast_in_block", &cast_in_block);
  module.def("reset_counts", &engine::reset_counts);
  py::class_<Function> function(module, "Function", "A Python function that is called through the engine.");
  function.def(py::init<const py::object&, const py::object&, const py::str&, const Rule&>(), py::arg("function"),
               py::arg("shown"), py::arg("operation"), py::arg("rule"));
  define_plain_method<&call_through_engine<Function>, 2>(function, "call");
  py::class_<Composite> composite(module, "Composite", "A Python function of torch's that lists may cover.");
  composite.def(py::init<const py::object&, const py::object&, const std::string&>(), py::arg("function"),
                py::arg("called"), py::arg("operation"));
  define_plain_method<&call_through_engine<Composite>, 2>(composite, "call");
  note_with_reserve(castable);
  note_with_reserve(rule);
  note_with_reserve(function);
  note_with_reserve(composite);
  module.def("forget_known", [](const py::object& tensor) { engine::forget_known(tensor.ptr()); });
  module.def("was_computed_from_module_value",
             [](const py::object& tensor) { return engine::was_computed_from_module_value(tensor.ptr()); });
  module.def("was_converted", [](const py::object& tensor) { return engine::was_converted(tensor.ptr()); });
  module.def("check_state",
             [](const py::object& set_attribute) { or_throw(engine::may_watch_state(set_attribute.ptr())); });
  module.def("watch_state",
             [](const py::object& set_attribute) { or_throw(engine::watch_state(set_attribute.ptr())); });
  module.def("follow_module_tensors", &engine::follow_module_tensors);
  module.def("module_tensors_are_followed", [] { return engine::module_tensors_are_followed; });
  module.def("remember_module_tensor",
             [](const py::object& object) { or_throw(engine::remember_module_tensor(object.ptr())); });
  module.def("was_lowered", [](const py::object& tensor) { return engine::was_lowered(tensor.ptr()); });
  module.def("may_be_lowered_in_graph",
             [](const py::object& tensor) { return engine::may_be_lowered_in_graph(tensor.ptr()); });

  module.attr("disabled_flag") = host::disabled_device;
  module.def("unpatched_copy", &unpatched_copy);
  module.def("is_covered", [](const py::object& object) {
    const Target* target = engine::find_target(object.ptr());
    return target != nullptr && target->installed;
  });
  module.def("optimizer_step_begins", [] {
    host::ensure_thread_follows_greenlets();
    ++thread_state.optimizer_steps;
  });
  module.def("optimizer_step_ends", [] {
    if (thread_state.optimizer_steps != 0) --thread_state.optimizer_steps;
  });
  // This function and those below are one call each: between several calls from Python, a signal handler could raise an
  // exception.
  module.def("autocast_depth", [](const py::object& increment, const py::object& decrement) {
    const auto depth = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(increment.ptr()));
    if (!depth) throw py::error_already_set();
    const auto left = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(decrement.ptr()));
    if (!left) throw py::error_already_set();
    return depth.cast<int>() - 1;
  });
  define_c_function<&call_without_casts_inside, 2>(module, "call_without_casts_inside");
  define_c_function<&call_with_lists_suspended, 2>(module, "call_with_lists_suspended");
  define_c_function<&call_compiled, 3>(module, "call_compiled");
  define_c_function<&call_backward, 3>(module, "call_backward");
  define_c_function<&call_writer, 3>(module, "call_writer");
  module.def("exchange_optimizer_steps",
             [](std::uint32_t steps) { return std::exchange(thread_state.optimizer_steps, steps); });
  module.def("set_distributed_is_imported", [](bool imported) { engine::distributed_is_imported = imported; });
  module.def("set_exact_files", [](const py::object& files) { engine::set_exact_files(files.ptr()); });
  module.attr("state_without_casts") = engine::pack({true, false, false, nullptr, false});
  define_c_function<&exchange_state, 1>(module, "exchange_state");
  module.def("make_region", &make_region, py::kw_only(), py::arg("plan"), py::arg("on_cpu"), py::arg("name"),
             py::arg("after_tracked_cast"));
  module.def("region_is_put_in",
             [](std::uint64_t number) { return region(number).installation == engine::installation_number(); });
  module.def("put_in_region", [](std::uint64_t number) { or_throw(engine::put_in(region(number))); });
  define_c_function<&enter_region, 2>(module, "enter_region");
  define_c_function<&leave_region, 1>(module, "leave_region");
  module.def("current_region", [] {
    const engine::RuleSet* set = thread_state.region;
    return set == nullptr || engine::is_of_modules(set) ? 0 : int{set->number};
  });
  module.def("check_modules",
             [](const py::object& call_impl) { or_throw(engine::may_watch_modules(call_impl.ptr())); });
  module.def("watch_modules", &watch_modules);
  module.def("watch_calls", &engine::watch_calls);
  module.def("follow_modules", [](const py::object& call_impl, const py::object& answering) {
    or_throw(engine::follow_modules(call_impl.ptr(), answering.ptr()));
  });
  module.def("stop_following_modules", &engine::stop_following_modules);
  module.def("count_calls", &count_calls);
  define_c_function<&call_by_slot, 4>(module, "call_by_slot");
  module.def("stop_watching_modules", &engine::stop_watching_modules);
  module.def("begins_to_apply_lists",
             [](const py::object& called) { return engine::begins_to_apply_lists(called.ptr()); });
  module.def("number_of_modules", [] {
    const engine::RuleSet* set = engine::rule_set_of_modules();
    or_throw(set != nullptr);
    return set->number;
  });
  module.def("number_of_suspension", [] {
    const std::optional<std::uint64_t> number = engine::number_of_suspension();
    or_throw(number.has_value());
    return number.value_or(0);
  });
  module.def("current_state", [] { return engine::pack(engine::current_state()); });
  module.def("lists_apply_here", &engine::lists_apply_here);
  module.def("casts_are_made_here", &engine::casts_are_made_here);
  module.def("set_region_device", [](const py::str& device_type, std::int8_t device, const py::tuple& dtypes,
                                     const py::object& set_autocast_enabled, const py::object& set_autocast_dtype) {
    engine::set_mark({device_type.ptr(), device, dtypes.ptr(), set_autocast_enabled.ptr(), set_autocast_dtype.ptr()});
  });
  module.def("follow_greenlets", [](const py::object& settrace, const py::object& gettrace) {
    or_throw(host::follow_greenlets(settrace.ptr(), gettrace.ptr()));
  });
  module.def("leave_greenlets", &host::leave_greenlets);
  module.def("set_in_child_process", [] { engine::in_child_process = true; });
  module.def("can_cover", [](const py::object& object) { return host::can_cover(object.ptr()); });
}

}  // namespace habana_mp

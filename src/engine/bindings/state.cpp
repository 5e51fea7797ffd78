// The state of a thread, calls that are made in another one, regions of hmp.autocast, and the rules within modules.
#include "engine/state.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/bindings/bindings.hpp"
#include "engine/modules.hpp"
#include "engine/region.hpp"
#include "engine/reporting.hpp"
#include "engine/slots.hpp"
#include "errors.hpp"
#include "host/casts_inside.hpp"
#include "host/modes.hpp"
#include "watch/modules.hpp"
#include "weights/cache.hpp"
#include "weights/escapes.hpp"

namespace habana_mp {

using engine::thread_state;

namespace {

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
  return called(engine::in_state(wanted, call));
}

// Returns the result of the backward of a Python function. torch.autocast does not apply in a backward, so convert's
// lists are suspended there. They apply again while autograd tracks operations, since such code repeats a forward. In
// an open region the lists apply throughout.
py::object call_backward(const py::object& function, const py::tuple& arguments, const py::dict& keywords) {
  engine::CastState wanted = engine::current_state();
  const bool falls_silent =
      engine::policy_is_installed && engine::base_of(wanted.region) == nullptr && !wanted.lists_suspended;
  if (!falls_silent || !engine::number_of_suspension(true)) {
    clear_error();
    return called(PyObject_Call(function.ptr(), arguments.ptr(), keywords.ptr()));
  }
  wanted.lists_suspended = wanted.suspended_until_tracking = true;
  return called(
      engine::in_state(wanted, [&] { return PyObject_Call(function.ptr(), arguments.ptr(), keywords.ptr()); }));
}

py::object call_without_casts_inside(const py::object& function, const py::object& argument) {
  const host::NoCastsInside off;
  return called(PyObject_CallOneArg(function.ptr(), argument.ptr()));
}

py::object call_with_lists_suspended(const py::object& function, const py::object& argument) {
  return with_lists_suspended([&] { return PyObject_CallOneArg(function.ptr(), argument.ptr()); });
}

py::object call_compiled(const py::object& function, const py::tuple& arguments, const py::dict& keywords) {
  return with_lists_suspended([&] {
    ++thread_state.compiled_runs;
    PyObject* result = PyObject_Call(function.ptr(), arguments.ptr(), keywords.ptr());
    --thread_state.compiled_runs;
    return result;
  });
}

// `written` are the tensors that the function writes to.
py::object call_writer(const py::object& function, const py::object& argument, const py::list& written) {
  const auto result = py::reinterpret_steal<py::object>(PyObject_CallOneArg(function.ptr(), argument.ptr()));
  {
    const HeldError held;
    for (const py::handle& tensor : written) weights::tensor_escapes(tensor.ptr());
  }
  if (!result) throw py::error_already_set();
  return result;
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

// Returns false if the region belongs to an earlier installation.
bool enter_region(const py::object& owner, std::uint64_t number, const py::object& inside) {
  const engine::RuleSet* set = number == 0 ? nullptr : &region(number);
  if (set != nullptr && set->installation != engine::installation_number()) return false;
  engine::enter_region(owner.ptr(), set, pointer_or_null(inside));
  return true;
}

void leave_region(const py::object& owner) {
  if (!engine::leave_region(owner.ptr())) {
    throw std::runtime_error(
        "a block of `disable_casts` or `autocast` is left that was not entered in this thread, or was left already");
  }
}

// Returns the number of a rule set, and true if torch.compile can tell it from others. `lists`: see
// engine/modules.hpp.
py::tuple make_module_rules(std::int64_t lists, const std::vector<PlannedTarget>& changes, const std::string& name) {
  const bool is_within = lists == 0 && engine::lists_wait_for_a_module();
  const engine::RuleSet* base = is_within ? engine::rule_set_of_modules() : nullptr;
  if (lists > 0) base = &region(static_cast<std::uint64_t>(lists));
  const engine::RuleSet* set = engine::make_module_rule_set(base, entries_of(changes), name);
  or_throw(set != nullptr);
  return py::make_tuple(set->number, set->mark != 0);
}

// Returns the mark of the rules of exact code where the current lists apply, and true if torch.compile can tell them
// from others.
py::tuple exact_rules() {
  const engine::RuleSet* set = engine::exact_rule_set();
  or_throw(set != nullptr);
  return py::make_tuple(set->mark, set->mark != 0);
}

// A call of a module that a compiler traces: the module counts as running until it leaves.
class TracedCall {
 public:
  explicit TracedCall(const py::object& module) : call_(watch::enter_call(module.ptr())) {
    PyObject* const values[] = {module.ptr()};
    model_ = std::make_unique<engine::ModelCall>(engine::Arguments{values, 1, nullptr});
    or_throw(call_ != nullptr);
    const std::optional<const engine::RuleSet*> rules = engine::rules_in_module(module.ptr());
    or_throw(rules.has_value());
    if (*rules != thread_state.region) region_ = *rules == nullptr ? 0 : int{(*rules)->mark};
  }

  // Judges the rules when the call was traced to its end. Returns its result.
  py::object judged(const py::object& result) {
    or_throw(engine::judge_rules(*call_));
    return result;
  }
  void leave() noexcept {
    call_.reset();
    model_.reset();
  }
  [[nodiscard]] bool is_outermost() const noexcept { return model_->is_outermost(); }
  // Returns the mark of the region in which the call runs, or -1 if it is the current one.
  [[nodiscard]] int region() const noexcept { return region_; }

 private:
  std::unique_ptr<engine::ModelCall> model_;
  std::unique_ptr<watch::ModuleCall> call_;
  int region_ = -1;
};

// Returns all objects of this class that the garbage collector knows. It lets no other thread run meanwhile: a list of
// all objects holds tuples that another thread is making, which Python then cannot finish.
py::list living(const py::type& kind) {
  py::list found;
  const auto get_objects = py::module_::import("gc").attr("get_objects");
  const Owned objects(PyObject_CallNoArgs(get_objects.ptr()));
  or_throw(static_cast<bool>(objects));
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(objects.get()); ++i) {
    PyObject* const one = PyList_GET_ITEM(objects.get(), i);
    const bool is_wanted = PyObject_TypeCheck(one, reinterpret_cast<PyTypeObject*>(kind.ptr())) != 0;
    or_throw(!is_wanted || PyList_Append(found.ptr(), one) == 0);
  }
  return found;
}

// Notes that a block of common/blocks.py was entered (1) or left (-1), then lets it settle, and once more after an
// error. A signal handler can raise in Python code, thus in `settle`, and not in this function.
void settle(const py::object& block, int change) {
  const auto note = [&](int by) { block.attr("entrances") = block.attr("entrances").cast<int>() + by; };
  note(change);
  try {
    block.attr("settle")();
  } catch (const py::error_already_set&) {
    if (change > 0) note(-change);
    block.attr("settle")();
    throw;
  }
}

TracedCall make_traced_call(const py::object& module) { return TracedCall(module); }

}  // namespace

void register_state(py::module_& module) {
  module.attr("disabled_flag") = host::disabled_device;
  module.def("optimizer_step_begins", [] {
    ++thread_state.optimizer_steps;
    weights::drop_trained();
  });
  module.def("optimizer_step_ends", [] {
    if (thread_state.optimizer_steps != 0) --thread_state.optimizer_steps;
    weights::drop_trained();
  });
  // One call each: between several calls from Python, a signal handler could raise an exception.
  module.def("call_without_casts_inside", &call_without_casts_inside);
  module.def("call_with_lists_suspended", &call_with_lists_suspended);
  module.def("call_compiled", &call_compiled);
  module.def("call_backward", &call_backward);
  module.def("call_writer", &call_writer);
  module.def("exchange_optimizer_steps",
             [](std::uint32_t steps) { return std::exchange(thread_state.optimizer_steps, steps); });
  module.attr("state_without_casts") = engine::pack({true, false, false, nullptr, false});
  module.def("exchange_state",
             [](std::uint64_t state) { return engine::pack(engine::exchange_state(engine::unpack(state))); });
  module.def("number_of_suspension", [] {
    const std::optional<std::uint64_t> number = engine::number_of_suspension();
    or_throw(number.has_value());
    return number.value_or(0);
  });
  module.def("exchange_runs_again",
             [](bool runs_again) { return std::exchange(engine::thread_state.runs_again, runs_again); });
  module.def("current_state", [] { return engine::pack(engine::current_state()); });
  module.def("lists_apply_here", &engine::lists_apply_here);
  module.def("casts_are_made_here", &engine::casts_are_made_here);
  module.def("set_in_child_process", [] { engine::in_child_process = true; });
  module.def("set_distributed_is_imported", [](bool imported) { engine::distributed_is_imported = imported; });
  module.def("set_exact_code", [](const std::optional<py::tuple>& files, const std::optional<py::tuple>& codes) {
    engine::set_exact_code(files ? files->ptr() : nullptr, codes ? codes->ptr() : nullptr);
  });
  module.def("is_exact", [](const py::object& code) -> std::optional<bool> {
    if (PyCode_Check(code.ptr()) == 0) throw py::type_error("is_exact needs a code object");
    const engine::CodeOwner owner = engine::owner_of(code.ptr());
    return owner == engine::CodeOwner::torch ? std::nullopt : std::optional(owner == engine::CodeOwner::exact);
  });
  module.def("pass_on_exactness", [](const py::object& code, const py::object& made) {
    if (PyCode_Check(code.ptr()) == 0 || PyCode_Check(made.ptr()) == 0) {
      throw py::type_error("pass_on_exactness needs two code objects");
    }
    or_throw(engine::pass_on_exactness(code.ptr(), made.ptr()));
  });
  module.def("exact_code_is_traced", [] { return int(engine::exchange_traced_caller(engine::TracedCaller::exact)); });
  module.def("exact_code_was_traced", [](int before) {
    const engine::TracedCaller caller = engine::exchange_traced_caller(static_cast<engine::TracedCaller>(before));
    return caller == engine::TracedCaller::exact_and_asked;
  });
  module.def("make_region", &make_region, py::kw_only(), py::arg("plan"), py::arg("on_cpu"), py::arg("name"),
             py::arg("after_tracked_cast"));
  module.def("region_mark", [](std::uint64_t number) { return region(number).mark; });
  module.def("region_is_put_in",
             [](std::uint64_t number) { return region(number).installation == engine::installation_number(); });
  module.def("put_in_region", [](std::uint64_t number) { or_throw(engine::put_in(region(number))); });
  module.def("enter_region", &enter_region, py::arg("owner"), py::arg("number"), py::arg("inside") = py::none());
  module.def("leave_region", &leave_region);
  module.def("leave_if_open", [](const py::object& owner) { engine::leave_region(owner.ptr()); });
  // As methods of a class these are bound to its instances, without Python code.
  module.attr("enter_process_block") =
      py::cpp_function([](const py::object& block) { settle(block, 1); }, py::is_method(module));
  module.attr("leave_process_block") =
      py::cpp_function([](const py::object& block, const py::args&) { settle(block, -1); }, py::is_method(module));
  module.def("current_region", [] {
    const engine::RuleSet* set = engine::base_of(thread_state.region);
    return set == nullptr || engine::is_of_modules(set) ? 0 : static_cast<int>(set->number);
  });
  module.def("make_module_rules", &make_module_rules);
  module.def("exact_rules", &exact_rules);
  module.def("living", &living);
  module.def("put_rules_in_modules", [](const py::object& resolver, const py::object& judge) {
    engine::put_rules_in_modules(pointer_or_null(resolver), pointer_or_null(judge));
  });
  py::class_<TracedCall> traced(module, "TracedCall",
                                "A call of a module while a compiler traces it, until it leaves.");
  traced.def("__init__", &Constructor<make_traced_call>::call, is_constructor, py::arg("module"))
      .def("judged", &TracedCall::judged)
      .def("leave", &TracedCall::leave)
      .def_property_readonly("is_outermost", &TracedCall::is_outermost)
      .def_property_readonly("region", &TracedCall::region);
  module.def("exchange_traced_graph", &engine::exchange_traced_graph);
  module.def("count_traced", &engine::count_traced);
  module.def("set_region_device", [](const py::str& device_type, std::int8_t device, const py::tuple& dtypes,
                                     const py::object& set_autocast_enabled, const py::object& set_autocast_dtype) {
    engine::set_mark({device_type.ptr(), device, dtypes.ptr(), set_autocast_enabled.ptr(), set_autocast_dtype.ptr()});
  });
}

}  // namespace habana_mp

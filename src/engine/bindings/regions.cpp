// Regions of hmp.autocast, and the rules within modules.
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/bindings/bindings.hpp"
#include "engine/model_results.hpp"
#include "engine/module_rules.hpp"
#include "engine/modules.hpp"
#include "engine/region.hpp"
#include "engine/slots.hpp"
#include "engine/state.hpp"
#include "errors.hpp"
#include "pybind.hpp"
#include "watch/modules.hpp"

namespace habana_mp {

using engine::thread_state;

namespace {

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
bool enter_region(const py::object& owner, std::uint64_t number) {
  const engine::RuleSet* set = number == 0 ? nullptr : &region(number);
  if (set != nullptr && set->installation != engine::installation_number()) return false;
  engine::enter_region(owner.ptr(), set);
  return true;
}

void leave_region(const py::object& owner) {
  if (!engine::leave_region(owner.ptr())) {
    throw std::runtime_error(
        "a block of `disable_casts` or `autocast` is left that was not entered in this thread, or was left already");
  }
}

// Returns the number of a rule set, and true if torch.compile can tell it from others. `lists`: see
// engine/module_rules.hpp.
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

TracedCall make_traced_call(const py::object& module) { return TracedCall(module); }

}  // namespace

void register_regions(py::module_& module) {
  module.def("make_region", &make_region, py::kw_only(), py::arg("plan"), py::arg("on_cpu"), py::arg("name"),
             py::arg("after_tracked_cast"));
  module.def("region_is_put_in",
             [](std::uint64_t number) { return region(number).installation == engine::installation_number(); });
  module.def("put_in_region", [](std::uint64_t number) { or_throw(engine::put_in(region(number))); });
  module.def("enter_region", &enter_region);
  module.def("leave_region", &leave_region);
  module.def("leave_if_open", [](const py::object& owner) { engine::leave_region(owner.ptr()); });
  module.def("current_region", [] {
    const engine::RuleSet* set = engine::base_of(thread_state.region);
    return set == nullptr || engine::is_of_modules(set) ? 0 : static_cast<int>(set->number);
  });
  module.def("make_module_rules", &make_module_rules);
  module.def("exact_rules", &exact_rules);
  module.def("living", &living);
  module.def("put_rules_in_modules",
             [](const py::object& call_impl, const py::object& answering, const py::object& resolver) {
               or_throw(engine::put_rules_in_modules(call_impl.ptr(), answering.ptr(), resolver.ptr()));
             });
  module.def("take_rules_out_of_modules", &engine::take_rules_out_of_modules);
  py::class_<TracedCall> traced(module, "TracedCall",
                                "A call of a module while a compiler traces it, until it leaves.");
  traced.def("__init__", &Constructor<make_traced_call>::call, is_constructor, py::arg("module"))
      .def("leave", &TracedCall::leave)
      .def_property_readonly("is_outermost", &TracedCall::is_outermost)
      .def_property_readonly("region", &TracedCall::region);
  module.def("set_region_device", [](const py::str& device_type, std::int8_t device, const py::tuple& dtypes,
                                     const py::object& set_autocast_enabled, const py::object& set_autocast_dtype) {
    engine::set_mark({device_type.ptr(), device, dtypes.ptr(), set_autocast_enabled.ptr(), set_autocast_dtype.ptr()});
  });
}

}  // namespace habana_mp

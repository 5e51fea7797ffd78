// The state of a thread, and calls that are made in another one.
#include "engine/state.hpp"

#include <cstdint>
#include <optional>
#include <utility>

#include "engine/bindings/bindings.hpp"
#include "engine/region.hpp"
#include "engine/rule.hpp"
#include "engine/target.hpp"
#include "errors.hpp"
#include "host/casts_inside.hpp"
#include "host/modes.hpp"
#include "weights/cache.hpp"
#include "weights/escapes.hpp"

namespace habana_mp {

using engine::thread_state;

namespace {

// Returns the result of `call`, made in this state, and restores the previous state. Throws if the call raised.
template <typename Call>
py::object in_state(const engine::CastState& wanted, const Call& call) {
  const engine::CastState before = engine::exchange_state(wanted);
  auto result = py::reinterpret_steal<py::object>(call());
  {
    const HeldError held;
    engine::exchange_state(before);
  }
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
py::object call_backward(const py::object& function, const py::tuple& arguments, const py::dict& keywords) {
  engine::CastState wanted = engine::current_state();
  const bool falls_silent =
      engine::policy_is_installed && engine::base_of(wanted.region) == nullptr && !wanted.lists_suspended;
  if (!falls_silent || !engine::number_of_suspension(true)) {
    clear_error();
    return called(PyObject_Call(function.ptr(), arguments.ptr(), keywords.ptr()));
  }
  wanted.lists_suspended = wanted.suspended_until_tracking = true;
  return in_state(wanted, [&] { return PyObject_Call(function.ptr(), arguments.ptr(), keywords.ptr()); });
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
}

}  // namespace habana_mp

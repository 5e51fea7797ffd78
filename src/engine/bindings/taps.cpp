// What is tapped: builtins, modules, hooks; tensors whose origin is known; and those that see calls.
#include "host/taps.hpp"

#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "engine/bindings/bindings.hpp"
#include "engine/known_tensors.hpp"
#include "engine/modules.hpp"
#include "engine/seen_calls.hpp"
#include "engine/state.hpp"
#include "engine/taps.hpp"
#include "host/modes.hpp"
#include "host/reader.hpp"
#include "tensor/buffers.hpp"
#include "tensor/cast.hpp"
#include "watch/values.hpp"

namespace habana_mp {

namespace {

host::TappedFunction counted;
std::size_t calls_of_counted = 0;

PyObject* counting_stub(PyObject*, PyObject* const* values, std::size_t flagged_count, PyObject* keywords) {
  ++calls_of_counted;
  return counted.call(values, flagged_count, keywords);
}

// Returns the result of `during()`, and the number of calls of `function` that reached its slot meanwhile.
std::pair<py::object, std::size_t> count_calls(const py::object& function, const py::function& during) {
  if (counted.is_tapped() || !host::TappedFunction::check(function.ptr())) {
    throw std::runtime_error("the calls of this function cannot be counted");
  }
  calls_of_counted = 0;
  counted.tap(function.ptr(), from_c<counting_stub>);
  auto result = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(during.ptr()));
  counted.stop();
  if (!result) throw py::error_already_set();
  return {std::move(result), calls_of_counted};
}

// `sequence` is a list or a tuple.
std::vector<PyObject*> items_of(const py::object& sequence) {
  PyObject* const* const items = PySequence_Fast_ITEMS(sequence.ptr());
  return {items, items + PySequence_Fast_GET_SIZE(sequence.ptr())};
}

void tap_builtins(const py::tuple& builtins, const py::tuple& writers) {
  if (builtins.size() != engine::paths_of_builtins().size()) throw py::value_error("one object for each path");
  or_throw(engine::tap_builtins(items_of(builtins), items_of(writers)));
}

void set_recognised(const py::tuple& steps, const py::dict& worker_namespace, const py::object& made_of_lowered,
                    const py::object& autocast_entered, const py::tuple& codes_of_regions, const py::object& custom_fwd,
                    const py::object& custom_fwd_asks, const py::object& custom_bwd_state, const py::tuple& inside,
                    const py::tuple& between, const py::tuple& through, const py::object& operator_found) {
  const auto held = [](const py::object& one) { return Owned::borrowed(one.ptr()); };
  engine::set_recognised({held(steps), held(worker_namespace), held(made_of_lowered), held(autocast_entered),
                          held(codes_of_regions), held(custom_fwd), held(custom_fwd_asks), held(custom_bwd_state),
                          held(inside), held(between), held(through), held(operator_found)});
}

py::object cast_in_block(const py::object& tensor, const py::object& dtype) {
  const Kind to = host::kind_of_dtype(dtype.ptr());
  Owned made = is_floating(to) ? tensor::cast_in_block(tensor.ptr(), to) : nullptr;
  return made ? py::reinterpret_steal<py::object>(made.release()) : py::none();
}

// A tensor without a gradient has none that is bad.
Py_ssize_t worst_gradient(const py::list& parameters) {
  static PyObject* const name = interned("grad");
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const py::object gradient = called(PyObject_GetAttr(parameters[i].ptr(), name));
    const watch::Finite state = watch::magnitude_of(gradient.ptr(), false).state;
    if (state == watch::Finite::infinities || state == watch::Finite::nans) return static_cast<Py_ssize_t>(i);
  }
  return -1;
}

}  // namespace

void register_taps(py::module_& module) {
  module.attr("paths_of_builtins") = py::tuple(py::cast(engine::paths_of_builtins()));
  module.def("tap_builtins", &tap_builtins);
  module.def("set_recognised", &set_recognised);
  module.def("set_devices_of_regions", [](const py::object& device_types) {
    if (!device_types.is_none() && !py::isinstance<py::tuple>(device_types)) throw py::type_error("expects a tuple");
    engine::set_devices_of_regions(device_types.ptr());
  });
  module.def("construction_begins", [](const py::object& module_) { engine::construction_begins(module_.ptr()); });
  // One call: between two from Python, a signal handler could raise an exception.
  module.def("autocast_depth", [](const py::object& increment, const py::object& decrement) {
    const py::object depth = called(PyObject_CallNoArgs(increment.ptr()));
    called(PyObject_CallNoArgs(decrement.ptr()));
    return depth.cast<int>() - 1;
  });
  module.def("check_modules", [](const py::object& call_impl) { or_throw(engine::can_tap_modules(call_impl.ptr())); });
  module.def("tap_modules", [](const py::object& call_impl) { or_throw(engine::tap_modules(call_impl.ptr())); });
  module.def("untap_modules", &engine::untap_modules);
  module.def("wait_for_modules", [](const std::optional<py::list>& modules) {
    engine::wait_for_modules(modules ? std::optional(items_of(*modules)) : std::nullopt);
  });
  engine::watch_calls(false);
  module.def("watch_calls", &engine::watch_calls);
  module.def("follow_modules", &engine::follow_modules);
  module.def("stop_waiting_for_modules", &engine::stop_waiting_for_modules);
  module.def("convert_model_results", [](const py::object& dtype, const py::object& holds, const py::object& convert) {
    engine::convert_model_results(
        {host::kind_of_dtype(dtype.ptr()), Owned::borrowed(holds.ptr()), Owned::borrowed(convert.ptr())});
  });
  module.def("stop_converting_model_results", [] { engine::convert_model_results({}); });
  module.def("count_model_result", [](const py::object& before, const py::object& after) {
    engine::count_model_result(before.ptr(), after.ptr());
  });
  module.def("model_results",
             [] { return py::make_tuple(engine::model_results.tensors, engine::model_results.bytes); });
  module.def("in_model", [] { return engine::thread_state.in_model; });
  module.def("exchange_in_model", [](bool in_model) { return std::exchange(engine::thread_state.in_model, in_model); });
  module.def("count_calls", &count_calls);
  module.def("set_tracked_cast", [](const py::object& function) {
    tensor::set_tracked_cast(function.is_none() ? nullptr : function.ptr());
  });
  module.def("set_number_in_range", [](const py::object& function) {
    tensor::set_number_in_range(function.is_none() ? nullptr : function.ptr());
  });
  module.def("buffer_count", &tensor::buffer_count);
  module.def("keep_blocks", [](const std::optional<std::uint64_t>& from, std::uint64_t most_waiting) {
    tensor::keep_blocks(from.value_or(~std::uint64_t{0}), most_waiting);
  });
  module.def("block_bytes_waiting", &tensor::bytes_waiting);
  module.def("cast_in_block", &cast_in_block);
  module.def("forget_known", [](const py::object& tensor) { engine::forget_known(tensor.ptr()); });
  module.def("was_converted", [](const py::object& tensor) { return engine::was_converted(tensor.ptr()); });
  module.def("tap_state", [](const py::object& set_function, bool only_checks) {
    or_throw(engine::tap_state(set_function.ptr(), only_checks));
  });
  module.def("was_lowered", [](const py::object& tensor) { return engine::was_lowered(tensor.ptr()); });
  module.def("may_be_lowered_in_graph",
             [](const py::object& tensor) { return engine::may_be_lowered_in_graph(tensor.ptr()); });
  module.def("guard_calls",
             [](const py::object& found, double share) { engine::guard_calls(pointer_or_null(found), share); });
  module.def("worst_value", [](const py::object& tensor, bool whole) {
    return static_cast<int>(watch::magnitude_of(tensor.ptr(), whole).state);
  });
  module.def("worst_gradient", &worst_gradient);
  module.def("computes_gradient", &host::gradients_are_worked_out);
  module.def("guarded_largest", &engine::largest_checked);
  module.def("forget_guarded_largest", [] { engine::largest_checked().clear(); });
  module.def("observe_calls",
             [](const py::object& observer) { const Owned former = engine::set_observer(pointer_or_null(observer)); });
  module.def("make_observed_call", [] { return called(engine::make_observed_call()); });
  module.def("observed_decision", []() -> py::object {
    const auto decision = engine::decision_of_observed_call();
    if (!decision) return py::none();
    return py::make_tuple(rules::name(decision->precision), rules::row_of(decision->reason).word);
  });
  module.def("call_unseen", [](const py::object& function) {
    const engine::UnseenBlock block;
    return called(PyObject_CallNoArgs(function.ptr()));
  });
}

}  // namespace habana_mp

#include "engine/facts.hpp"

#include <algorithm>

#include "engine/attempt.hpp"
#include "engine/cast_arguments.hpp"
#include "engine/known_tensors.hpp"
#include "errors.hpp"
#include "host/callers.hpp"
#include "host/casts_inside.hpp"
#include "host/tensors.hpp"
#include "tensor/cast.hpp"

namespace habana_mp::engine {

namespace {

// True if one of the floating tensors is on a device of this kind.
bool holds_tensor_on(RuleSet::Device device, const Arguments& arguments) {
  return is_any_tensor(arguments, [=](PyObject* value, Kind kind) {
    if (!is_floating(kind)) return false;
    // The fast check comes first: it holds for plain tensors on the CPU alone.
    const bool off_cpu = !host::is_plain_on_cpu(value) && host::is_off_cpu(value);
    return off_cpu == (device == RuleSet::Device::accelerator);
  });
}

// True if an argument of a convolution is left out, or is this number in each dimension.
bool is_everywhere(const Arguments& arguments, Py_ssize_t position, PyObject* name, long wanted) {
  PyObject* const given = find_argument(arguments, position, name);
  const auto is_wanted = [=](PyObject* one) { return PyLong_CheckExact(one) && PyLong_AsLong(one) == wanted; };
  if (given == nullptr || is_wanted(given)) return true;
  if (!PyTuple_Check(given)) return false;
  return std::all_of(PySequence_Fast_ITEMS(given), PySequence_Fast_ITEMS(given) + PyTuple_GET_SIZE(given), is_wanted);
}

// True if the weight of a convolution, its second argument, has 32 input channels or more, or rows shorter than 4.
bool has_many_channels_or_short_rows(const Arguments& arguments) {
  static PyObject* const name = interned("weight");
  PyObject* weight = find_argument(arguments, 1, name);
  DLTensor view;
  return weight != nullptr && host::is_plain_tensor(weight) && host::view_of(weight, view) && view.ndim > 1 &&
         (view.shape[1] >= 32 || view.shape[view.ndim - 1] < 4);
}

// True if no tensor is in a lower precision, and no Parameter is combined with a tensor that has dimensions and is no
// Parameter, as an activation is.
bool is_of_float32_alone(const Arguments& arguments) {
  bool holds_parameter = false;
  bool holds_other = false;
  return !is_any_tensor(arguments, [&](PyObject* value, Kind kind) {
    if (is_lower(kind)) return true;
    if (kind != Kind::f32) return false;
    if (host::is_parameter(value)) {
      holds_parameter = true;
    } else if (!host::has_no_dimensions(value)) {
      holds_other = true;
    }
    return holds_parameter && holds_other;
  });
}

}  // namespace

bool holds_lower_tensor(const Arguments& arguments) {
  return is_any_tensor(arguments, [](PyObject*, Kind kind) { return is_lower(kind); });
}

// True if the exception that is set is an error for these arguments, which torch itself may raise or not: no interrupt,
// and no lack of memory. A subclass may raise an exception of any class.
static bool is_error_of(const Arguments& arguments) {
  if (PyErr_ExceptionMatches(PyExc_MemoryError) != 0) return false;
  const bool may_be_of_any_class = host::holds_subclass(arguments.values, arguments.count());
  return may_be_of_any_class ? PyErr_ExceptionMatches(PyExc_Exception) != 0 : !is_interrupt();
}

rules::Answer ask(PyObject* condition, const Arguments& arguments) {
  const Owned answer(PyObject_Vectorcall(condition, arguments.values, static_cast<std::size_t>(arguments.positional),
                                         arguments.keywords));
  if (!answer && is_error_of(arguments)) clear_error();
  if (PyErr_Occurred() != nullptr) return rules::Answer::failed;
  return answer.get() == Py_True ? rules::Answer::yes : rules::Answer::no;
}

Kind Facts::lower_state() const {
  for (Py_ssize_t i = 0; i < arguments.count(); ++i) {
    const Kind kind = may_cast(rule, arguments, i) ? Kind::other : host::kind_of(arguments.values[i]);
    if (is_lower(kind)) return kind;
  }
  return Kind::other;
}

// True if this call is part of an operation that was decided as a whole. Torch's own Python code makes such calls below
// the dispatcher, and while a tracer decomposes an operation. Intercepted calls count too, since the interceptor calls
// torch again.
//
// A user-defined function is decided wherever it is called. A composite looks for interceptors by itself, but not every
// composite does, so it is decided first.
bool Facts::is_decided_elsewhere() const {
  if (target.kind == host::CallableKind::user_function) return false;
  if (is_below_dispatcher()) return true;
  if (target.kind == host::CallableKind::composite) return false;
  if (host::function_mode_is_on()) return true;
  if (!host::holds_subclass(arguments.values, arguments.count())) return false;
  return host::has_torch_function(arguments.values, arguments.count()) || caller_is_inside_of_an_operation();
}

std::optional<Reason> Facts::place() const {
  return may_be_a_place(thread_state) ? reason_against_casts(thread_state) : std::nullopt;
}

bool Facts::is_of_float32_alone_within_modules() const {
  return is_of_modules(thread_state.region) && is_of_float32_alone(arguments);
}

bool Facts::is_for_another_device() const {
  const RuleSet* region = thread_state.region;
  return region != nullptr && region->device != RuleSet::Device::any && !holds_tensor_on(region->device, arguments);
}

bool Facts::first_input_is_a_number() const {
  return arguments.positional > 0 && is_floating(reading.kinds[0]) && host::has_no_dimensions(arguments.values[0]);
}

bool Facts::is_common_convolution() const {
  static PyObject* const stride = interned("stride");
  static PyObject* const output_padding = interned("output_padding");
  const bool is_transposed = rule.execution.form == ProductForm::transposed_convolution;
  return is_everywhere(arguments, 3, stride, 1) && has_many_channels_or_short_rows(arguments) &&
         (!is_transposed || is_everywhere(arguments, 5, output_padding, 0));
}

bool Facts::may_lower_products(Kind to) const {
  if (!host::may_cast_inside() || host::is_recorded_by_torch()) return false;
  return !is_any_tensor(arguments, [to](PyObject* value, Kind kind) {
    return is_floating(kind) && ((kind != Kind::f32 && kind != to) || host::is_off_cpu(value));
  });
}

// Kernels take a float32 weight beside a lowered input. The gradient formulas of torch.func transforms and of
// forward-mode AD do not.
bool Facts::mixes_in_a_transform() const {
  return (rule.castable.off_cpu_positions | rule.castable.raised_positions) != 0 && host::is_transformed() &&
         host::grad_is_enabled() && one_stays_in_float32(rule, arguments, reading);
}

// An exception of any other class comes from Python code inside the call, such as a hook that stops a recomputation,
// and must reach the caller.
bool Facts::torch_raised() const {
  PyObject* type = PyErr_Occurred();
  const bool is_torchs = type == PyExc_RuntimeError || type == PyExc_NotImplementedError || type == PyExc_TypeError ||
                         type == PyExc_ValueError || type == PyExc_IndexError;
  return is_torchs && !host::jit_trace_was_recording() && !host::raised_by_user_code();
}

// True for a layout that cannot be cast and for a subclass that refuses the cast: the call is then made as it is
// written.
bool Facts::cast_refused() const { return is_error_of(arguments) && !host::jit_trace_was_recording(); }

bool Facts::is_left_alone() const {
  const HeldError held;
  return rules::is_left_alone(*this);
}

}  // namespace habana_mp::engine

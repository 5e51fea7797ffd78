#include "engine/products.hpp"

#include <algorithm>
#include <utility>

#include "engine/originals.hpp"
#include "errors.hpp"
#include "host/casts_inside.hpp"
#include "host/modes.hpp"
#include "host/tensors.hpp"
#include "host/view.hpp"

namespace habana_mp::engine {

NeverDestroyed<ProductSettings> product_settings;

namespace {

// The values of all operands together. A function of autograd in Python, or casts, would cost more than they gain.
constexpr std::int64_t least_values_tracked = 1 << 13;

// A look at the tensors of a call.
struct Operands {
  bool are_plain = true;  // all floating ones are ordinary tensors with values on the CPU
  bool are_tracked = false;
  std::int64_t values = 0;
};

Operands look_at(const Arguments& arguments) {
  Operands seen;
  is_any_tensor(arguments, [&seen](PyObject* value, Kind kind) {
    if (!is_floating(kind)) return false;
    DLTensor view;
    seen.are_tracked = seen.are_tracked || host::requires_grad(value);
    seen.are_plain = seen.are_plain && host::view_plain_on_cpu(value, view);
    if (seen.are_plain) seen.values += host::count_elements(value);
    return false;
  });
  return seen;
}

// True if `matmul` expands batches to those of the other operand. Their gradient is then a sum of products, each of
// which torch rounds.
bool expands_batches(const Arguments& arguments) {
  DLTensor one;
  DLTensor other;
  return arguments.positional == 2 && host::view_plain_on_cpu(arguments.values[0], one) && one.ndim > 2 &&
         host::view_plain_on_cpu(arguments.values[1], other) && other.ndim > 2 &&
         !std::equal(one.shape, one.shape + one.ndim - 2, other.shape, other.shape + other.ndim - 2);
}

// True if `linear` adds the bias to a product that is rounded before: torch folds no batches with gaps between them,
// and no vector with gaps.
bool adds_bias_afterwards(const Arguments& arguments) {
  static PyObject* const bias = interned("bias");
  static PyObject* const name = interned("input");
  PyObject* const added = find_argument(arguments, 2, bias);
  PyObject* const input = added == nullptr || added == Py_None ? nullptr : find_argument(arguments, 0, name);
  DLTensor view;
  return input != nullptr && host::view_plain_on_cpu(input, view) && view.ndim != 2 && !host::is_contiguous(view);
}

// True for a product that torch's function may compute: the processor has instructions for it, or it is small and
// autograd tracks the call. `count_values` counts those of the operands. A small convolution is not left to torch,
// which would sum its gradient in the lower precision.
template <typename CountValues>
bool is_left_to_torch(ProductForm form, Kind to, CountValues&& count_values) {
  if (!lacks_instructions(to)) return true;
  const bool is_convolution = form == ProductForm::convolution || form == ProductForm::transposed_convolution;
  return !is_convolution && computes_as_tracked() && count_values() < least_values_tracked;
}

// True if torch's function rounds within the sum on every processor.
bool rounds_within(ProductForm form) { return form == ProductForm::rounds_within || form == ProductForm::addmv; }

// True if torch's function rounds twice even so, if autograd tracks the call.
bool rounds_twice(ProductForm form, const Arguments& arguments) {
  return form == ProductForm::matmul   ? expands_batches(arguments)
         : form == ProductForm::linear ? adds_bias_afterwards(arguments)
                                       : false;
}

// Makes a linear layer's call with the input in one piece.
Owned call_with_dense_input(const Call& call, const Arguments& arguments) {
  static PyObject* const contiguous = interned("contiguous");
  static PyObject* const name = interned("input");
  PyObject* const given = find_argument(arguments, 0, name);
  const Owned input(PyObject_CallMethodNoArgs(given, contiguous));
  if (!input) return nullptr;
  SmallBuffer<PyObject*> values(arguments.count());
  std::replace_copy(arguments.values, arguments.values + arguments.count(), values.data(), given, input.get());
  return Owned(call_without_modes(call.target, {values.data(), arguments.positional, arguments.keywords}));
}

// Makes the call in float32 with the values that the operands have. Returns the sum.
Owned call_in_float32(const Call& call, const Arguments& arguments, CastContext context) {
  Reading reading(arguments.count());
  read(call.rule, arguments, reading);
  CastArguments wide(arguments);
  if (!wide.make(call.rule, reading, Kind::f32, context)) return nullptr;
  return Owned(call_without_modes(call.target, wide.arguments()));
}

// The same, with the result rounded.
Owned compute_in_float32(const Call& call, const Arguments& arguments, Kind to) {
  CastContext context;
  context.may_reuse_memory = !host::grad_is_enabled() && call.rule.takes_weights_once();
  const Owned sum = call_in_float32(call, arguments, context);
  return sum ? rounded(sum.get(), to, context) : nullptr;
}

// Returns the state with which a recurrent layer begins, a tensor or a list of two; null for a call without a state.
PyObject* state_of(const Call& call, Py_ssize_t position_of_weights) {
  for (Py_ssize_t i = 1; i < position_of_weights; ++i) {
    const Kind kind = call.reading.kinds[i];
    if (is_floating(kind) || kind == Kind::sequence) return call.arguments.values[i];
  }
  return nullptr;
}

// Calls the function for calls that autograd tracks. Returns null without an exception for a form without a function,
// or a call that the function does not take.
Owned call_tracked(const Call& call, const Arguments& arguments) {
  const auto form = static_cast<std::size_t>(call.rule.execution.form);
  const Owned function = Owned::borrowed_or_null(product_settings->tracked[form].get());
  const Owned operands(function && arguments.keywords == nullptr ? positional_of(arguments) : nullptr);
  const Owned given = call.rule.float32_result ? positional_of(call.arguments) : Owned::borrowed(Py_None);
  if (!operands || !given) return nullptr;
  Owned result(
      PyObject_CallFunctionObjArgs(function.get(), call.target.object.get(), operands.get(), given.get(), nullptr));
  return result.get() == Py_NotImplemented ? nullptr : std::move(result);
}

// Makes the call in float32 with the values of the operands, so that each gradient is a sum in float32.
Owned call_widened(const Call& call, const Arguments& arguments, Kind to, bool is_traced) {
  const Owned function = Owned::borrowed(product_settings->widened.get());
  const Owned operands = all_of(arguments);
  const Owned given = all_of(call.arguments);
  if (!operands || !given) return nullptr;
  const Owned wide(PyObject_CallFunctionObjArgs(function.get(), operands.get(), given.get(),
                                                is_traced ? Py_True : Py_False, nullptr));
  if (!wide) return nullptr;
  const Owned result(
      call_without_modes(call.target, {PySequence_Fast_ITEMS(wide.get()), arguments.positional, arguments.keywords}));
  if (!result || !host::grad_is_enabled()) return Owned::borrowed_or_null(result.get());
  const Owned rounding = Owned::borrowed(product_settings->with_rounded_gradient.get());
  return Owned(PyObject_CallFunctionObjArgs(rounding.get(), result.get(), host::dtype_of(to),
                                            is_traced ? Py_True : Py_False, nullptr));
}

// True if all floating tensors are ordinary ones on another device than the CPU.
bool is_on_accelerator(const Arguments& arguments) {
  return !is_any_tensor(arguments, [](PyObject* value, Kind kind) {
    return is_floating(kind) && !(host::is_plain_tensor(value) && host::is_off_cpu(value));
  });
}

// Makes a call whose result is the float32 sum of products. Tensors that are added to them keep their precision.
Owned call_with_float32_result(const Call& call, const Arguments& arguments, Kind to) {
  const ProductForm form = call.rule.execution.form;
  const bool is_traced = host::is_traced();
  if (!is_traced && look_at(arguments).are_plain) {
    const bool is_tracked = host::grad_is_enabled() && look_at(call.arguments).are_tracked;
    Owned result = is_tracked ? call_tracked(call, arguments) : multiply(form, arguments, to, true);
    if (result || PyErr_Occurred() != nullptr) return result;
  } else if (!is_traced && has_weight(form) && is_on_accelerator(arguments)) {
    Owned result = call_tracked(call, arguments);
    if (result || PyErr_Occurred() != nullptr) return result;
  }
  return call_widened(call, arguments, to, is_traced);
}

}  // namespace

bool is_computed_here(const Rule& rule, const Arguments& arguments, Kind to) {
  const ProductForm form = rule.execution.form;
  if (form == ProductForm::none || !is_lower(to)) return false;
  if (rule.float32_result || rounds_within(form)) return true;
  if (!is_left_to_torch(form, to, [&] { return look_at(arguments).values; })) return true;
  return computes_as_tracked() ? rounds_twice(form, arguments) : has_weight(form);
}

Owned call_lowered(const Call& call, const Arguments& arguments, Kind to, bool in_float32) {
  const ProductForm form = call.rule.execution.form;
  const auto by_torch = [&] { return Owned(call_without_modes(call.target, arguments)); };
  if (form == ProductForm::none || !host::autocast_is_off()) return by_torch();
  if (call.rule.float32_result) return call_with_float32_result(call, arguments, to);
  if (host::is_traced()) return in_float32 ? compute_in_float32(call, arguments, to) : by_torch();
  const bool must_look = in_float32 || rounds_within(form) || lacks_instructions(to) || computes_as_tracked();
  const Operands operands = must_look ? look_at(arguments) : Operands();
  if (!operands.are_plain) return by_torch();
  in_float32 = in_float32 || rounds_within(form) || !is_left_to_torch(form, to, [&] { return operands.values; });
  const bool wants_dense_input = form == ProductForm::linear && !in_float32;
  if (computes_as_tracked() && wants_dense_input) return call_with_dense_input(call, arguments);
  const bool is_tracked = operands.are_tracked && host::grad_is_enabled();
  Owned result = is_tracked ? call_tracked(call, arguments) : multiply(form, arguments, to, false);
  if (result || PyErr_Occurred() != nullptr) return result;
  if (wants_dense_input && adds_bias_afterwards(arguments)) return call_with_dense_input(call, arguments);
  return in_float32 ? compute_in_float32(call, arguments, to) : by_torch();
}

bool may_call_layer_in_float32(const Call& call, Kind to, Py_ssize_t position_of_weights) {
  PyObject* const state = state_of(call, position_of_weights);
  if (state == nullptr || call.rule.execution.form == ProductForm::none || !lacks_instructions(to) ||
      host::is_traced() || !look_at(call.arguments).are_plain) {
    return false;
  }
  if (host::kind_of(state) != Kind::sequence) return true;
  DLTensor output;
  DLTensor cell;
  return PySequence_Fast_GET_SIZE(state) == 2 && host::view_on_cpu(PySequence_Fast_GET_ITEM(state, 0), output) &&
         host::view_on_cpu(PySequence_Fast_GET_ITEM(state, 1), cell) && output.ndim > 0 && cell.ndim > 0 &&
         output.shape[output.ndim - 1] == cell.shape[cell.ndim - 1];
}

Owned call_layer_in_float32(const Call& call, Kind to, Py_ssize_t position_of_weights, CastContext& context) {
  Reading operands(call.arguments.count());
  for (Py_ssize_t i = 0; i < call.arguments.count(); ++i) {
    operands.kinds[i] = i == 0 || i == position_of_weights ? call.reading.kinds[i] : Kind::other;
  }
  CastArguments rounded_ones(call.arguments);
  if (!rounded_ones.make(call.rule, operands, to, context)) return nullptr;
  const Owned result = call_in_float32(call, rounded_ones.arguments(), {});
  PyObject* const state = state_of(call, position_of_weights);
  const Kind of_state =
      host::kind_of(host::kind_of(state) == Kind::sequence ? PySequence_Fast_GET_ITEM(state, 0) : state);
  return result && is_lower(of_state) ? rounded(result.get(), of_state, context)
                                      : Owned::borrowed_or_null(result.get());
}

}  // namespace habana_mp::engine

#include "engine/attempt.hpp"

#include <algorithm>
#include <utility>

#include "engine/originals.hpp"
#include "engine/products.hpp"
#include "engine/reporting.hpp"
#include "errors.hpp"
#include "host/callers.hpp"
#include "host/casts_inside.hpp"
#include "host/tensors.hpp"
#include "weights/cache.hpp"

namespace habana_mp::engine {

using rules::Try;

namespace {

// The casts of a call that torch's autocast makes within the operation: none if `autocast` is null.
struct CastsByAutocast {
  const host::Autocast* autocast = nullptr;
  bool are_all = false;  // it makes all casts of the call
};

// Returns the casts that are left to torch's autocast: none if autocast would also cast inputs that the rule does not.
// Counts them in `context` if they are all casts of the call.
CastsByAutocast casts_left_to_autocast(const Call& call, Kind to, bool records, CastContext& context) {
  const auto& [target, rule, arguments, reading] = call;
  if (!rule.casts_inside || rule.action != Action::precision || rule.to == Kind::f32) return {};
  if (target.kind != host::CallableKind::function && target.kind != host::CallableKind::method) return {};
  const host::Autocast* autocast = nullptr;
  bool everything = !rule.saturates && rule.castable.raised_positions == 0 && rule.castable.off_cpu_positions == 0;
  CastContext noted;
  noted.leaves_casts_to_autocast = true;
  for (Py_ssize_t i = 0; i < arguments.count(); ++i) {
    const Kind kind = reading.kinds[i];
    PyObject* const value = arguments.values[i];
    if (kind == Kind::sequence) return {};
    if (!is_floating(kind)) continue;
    const host::Autocast* const of_value = host::autocast_for(value);
    if (of_value == nullptr || (autocast != nullptr && of_value != autocast)) return {};
    autocast = of_value;
    if (kind == to || !everything) continue;
    const std::int64_t count = host::count_elements(value);
    everything = !tensor::is_cast_to_block(count) && (kind != Kind::f32 || !may_have_cached_cast(rule, value, noted));
    noted.count_autocast_cast(value, to, count);
  }
  // Without gradients the CPU's casts reuse memory. An accelerator's casts are timed only if the core makes them.
  const bool is_best_here = autocast == &host::autocast_on_cpu ? records : !tensor::are_casts_timed();
  if (autocast == nullptr || !is_best_here) return {};
  if (!host::may_cast_inside(*autocast) || host::is_intercepted()) return {};
  if (everything) context = noted;
  return {autocast, everything};
}

Owned call_and_cast_inside(Target& target, const Arguments& arguments, Kind to,
                           const host::Autocast& autocast = host::autocast_on_cpu) {
  const host::CastsInside on(to, autocast);
  return Owned(call_without_modes(target, arguments));
}

// Returns the position of the last list among the arguments, which holds the weights of a recurrent layer; -1 if no
// argument is a list.
Py_ssize_t position_of_weights(const Call& call) {
  Py_ssize_t place = call.arguments.count() - 1;
  while (place >= 0 && call.reading.kinds[place] != Kind::sequence) --place;
  return place;
}

// True if all items of this list are plain tensors.
bool are_plain(PyObject* list) {
  return std::all_of(PySequence_Fast_ITEMS(list), PySequence_Fast_ITEMS(list) + PySequence_Fast_GET_SIZE(list),
                     [](PyObject* item) { return host::is_plain_tensor(item); });
}

// If autograd does not track the call, its casts do not require gradients, and torch then makes the products of
// adjacent sequences one by one. So this replaces each cast by an alias that requires a gradient. It changes `made`, a
// list or tuple that belongs to this call, in place. Returns false with an exception set on failure.
bool fold_products(PyObject* made) {
  static PyObject* const detach = interned("detach");
  static PyObject* const requires_grad = interned("requires_grad_");
  PyObject** const items = PySequence_Fast_ITEMS(made);
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(made); ++i) {
    if (!host::is_exact_tensor(items[i]) || host::requires_grad(items[i])) continue;
    Owned other(PyObject_CallMethodNoArgs(items[i], detach));
    Owned same(other ? PyObject_CallMethodNoArgs(other.get(), requires_grad) : nullptr);
    other.reset();
    if (!same) return false;
    const Owned former(std::exchange(items[i], same.release()));
  }
  return true;
}

// Makes the casts of a call, and prepares those of a recurrent layer's weights for its products (fold_products).
// Returns false with an exception set on failure.
bool make_casts(const Call& call, Kind to, bool records, CastArguments& cast, Attempt& attempt) {
  if (!cast.make(call.rule, call.reading, to, attempt.context)) return false;
  if (!call.rule.is_recurrent || attempt.plan.is_fused || records || to == Kind::f32) return true;
  const Py_ssize_t place = position_of_weights(call);
  PyObject* const made = place < 0 ? nullptr : cast.arguments().values[place];
  return made == nullptr || made == call.arguments.values[place] || fold_products(made);
}

// Makes a call in which torch's autocast lowers the inputs of each product. The weights are cast before the call, since
// every step uses them. Autocast casts them too if other code sees each operation (host::is_traced) or if they are not
// plain tensors.
Owned attempt_products_inside(const Call& call, Kind to, Attempt& attempt) {
  const Arguments& arguments = call.arguments;
  const Py_ssize_t place = position_of_weights(call);
  if (may_call_layer_in_float32(call, to, place)) return call_layer_in_float32(call, to, place, attempt.context);
  if (place < 0 || host::is_traced() || !are_plain(arguments.values[place])) {
    for (Py_ssize_t i = 0; place >= 0 && i < PySequence_Fast_GET_SIZE(arguments.values[place]); ++i) {
      if (host::kind_of(PySequence_Fast_GET_ITEM(arguments.values[place], i)) == Kind::f32) ++attempt.context.casts;
    }
    return call_and_cast_inside(call.target, arguments, to);
  }
  Reading weights(arguments.count());
  for (Py_ssize_t i = 0; i < arguments.count(); ++i) weights.kinds[i] = i == place ? Kind::sequence : Kind::other;
  CastArguments cast(arguments);
  const Call of_weights{call.target, call.rule, arguments, weights};
  attempt.made = make_casts(of_weights, to, host::grad_is_enabled(), cast, attempt);
  return attempt.made ? call_and_cast_inside(call.target, cast.arguments(), to) : nullptr;
}

Owned attempt_with_given_layout(const Call& call, Kind to, bool records, Attempt& attempt) {
  CastContext& context = attempt.context;
  const Rule& rule = call.rule;
  const bool computes = attempt.plan.in_float32 || is_computed_here(rule, call.arguments, to);
  const bool is_on_cpu = host::is_plain_on_cpu(call.arguments.values[0]);
  const bool may_leave_casts = !rule.float32_result && (!is_on_cpu || (records && !computes));
  const auto [autocast, are_all] =
      may_leave_casts ? casts_left_to_autocast(call, to, records, context) : CastsByAutocast();
  if (are_all) return call_and_cast_inside(call.target, call.arguments, to, *autocast);
  // If autograd tracks the call, its graph holds the casts, so their memory cannot be reused.
  context.may_reuse_memory = !records && rule.takes_weights_once() && !call.target.is_python();
  context.leaves_casts_to_autocast = autocast != nullptr;
  CastArguments cast(call.arguments);
  attempt.made = make_casts(call, to, records, cast, attempt);
  attempt.scalar_changed = cast.scalar_changed();
  if (!attempt.made) return nullptr;
  if (context.has_autocast_casts) return call_and_cast_inside(call.target, cast.arguments(), to, *autocast);
  return computes ? call_lowered(call, cast.arguments(), to, attempt.plan.in_float32)
                  : Owned(call_without_modes(call.target, cast.arguments()));
}

// Attempts the call with a copy of the first input whose rows are evenly spaced. A tracer's tensor has no memory yet,
// so the copy becomes part of the traced code.
Owned attempt_with_traced_rows(const Call& call, Kind to, Attempt& attempt) {
  const Arguments& arguments = call.arguments;
  const Owned rows(
      PyObject_CallFunctionObjArgs(call.rule.execution.in_rows, arguments.values[0], arguments.values[1], nullptr));
  if (!rows && is_interrupt()) return nullptr;
  clear_error();
  SmallBuffer<PyObject*> values(arguments.count());
  std::copy_n(arguments.values, arguments.count(), values.data());
  if (rows) values[0] = rows.get();
  const Arguments given{values.data(), arguments.positional, arguments.keywords};
  return attempt_with_given_layout({call.target, call.rule, given, call.reading}, to, false, attempt);
}

}  // namespace

Owned attempt_with_casts(const Call& call, Attempt& attempt) {
  const Arguments& arguments = call.arguments;
  const Kind to = attempt.plan.computed_in;
  if (attempt.plan.is_inside) return attempt_products_inside(call, to, attempt);
  const bool records = host::grad_is_enabled();
  const bool may_be_traced = call.rule.execution.in_rows != nullptr && !records && to != Kind::f32;
  if (may_be_traced && arguments.positional > 1 && host::holds_subclass(arguments.values, 1) &&
      host::is_intercepted()) {
    return attempt_with_traced_rows(call, to, attempt);
  }
  return attempt_with_given_layout(call, to, records, attempt);
}

// ---- failed calls that are made again ----

namespace {

// Makes the call with every input in one precision.
Owned make_in(Kind to, Decision decision, const Call& call, rules::Failure& failure) {
  CastContext context;
  CastArguments cast(call.arguments);
  failure.casts_were_made = cast.make(call.rule, call.reading, to, context);
  failure.changed_anything = context.casts != 0;
  Owned result(failure.casts_were_made ? call_original(call.target, cast.arguments()) : nullptr);
  if (result) report(call.target, decision, context);
  return result;
}

Owned make_as_written(const Call& call) {
  Owned result(call_original(call.target, call.arguments));
  if (result) report(call.target, {Precision::unchanged, Reason::no_kernel}, {});
  return result;
}

Owned make_try(Try step, const Facts& call, rules::Failure& failure) {
  switch (step) {
    case Try::in_float32:
      return make_in(Kind::f32, {Precision::fp32, Reason::no_kernel}, call, failure);
    case Try::in_precision_of_state: {
      const Kind to = call.lower_state();
      return make_in(to, {rules::precision_of(to), Reason::in_place}, call, failure);
    }
    default:
      return make_as_written(call);
  }
}

// True if the exception says that a dtype was refused, by torch or by a cast.
bool is_refusal(const rules::Failure& failure) { return !failure.casts_were_made || host::error_is_about_a_dtype(); }

}  // namespace

Owned try_again(Try step, const rules::Failure& first, const Facts& facts) {
  if (step == Try::give_up) return nullptr;
  bool was_refusal = is_refusal(first);
  do {
    HeldError former;
    rules::Failure failure{.step = step, .was_as_written = first.was_as_written};
    trace_steps_of(facts.target);
    rules::trace("it failed, and is tried again", rules::name(step));
    Owned result = make_try(step, facts, failure);
    if (!result) {
      step = rules::next_try(facts.rule, failure, facts);
      const bool is_of_call = failure.casts_were_made ? facts.torch_raised() : facts.cast_refused();
      const bool refused = is_of_call && is_refusal(failure);
      if (former && is_of_call && !rules::tells_more(failure, refused, was_refusal)) continue;
      was_refusal = refused;
    }
    former.drop();
    if (result) return result;
  } while (step != Try::give_up);
  return nullptr;
}

Owned call_without_lowering(const Facts& facts) {
  const bool may_widen = facts.rule.action != Action::in_place;
  return try_again(may_widen ? Try::in_float32 : Try::as_written, {}, facts);
}

Owned try_plain_again(bool holds_lower, const Facts& facts) {
  const Try step = rules::next_try_of_plain(facts.rule, holds_lower, facts);
  return try_again(step, {.was_as_written = true}, facts);
}

}  // namespace habana_mp::engine

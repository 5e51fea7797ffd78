#include "engine/cast_arguments.hpp"

#include <cmath>
#include <cstdlib>
#include <utility>

#include "engine/reporting.hpp"
#include "errors.hpp"
#include "host/tensors.hpp"
#include "weights/cache.hpp"

namespace habana_mp::engine {

namespace {

// True if the rule brings tensors without dimensions into range, as it does Python numbers, and this is one.
bool is_number_tensor(const Rule& rule, PyObject* item, Kind to) {
  return rule.saturates_tensors && to != Kind::f32 && host::count_elements(item) == 1 && host::has_no_dimensions(item);
}

// Returns the cached cast of a weight or of a view of one. Null if it is not cached; an exception is then set only by
// an interrupt, or if memory runs out.
Owned cached_cast_of(PyObject* weight, bool is_view, Kind to, CastContext& context) {
  if (!context.state_is_read) {
    context.state_is_read = true;
    context.records = host::grad_is_enabled();
    context.may_cache = weights::may_be_cached();
  }
  if (!context.may_cache) return nullptr;
  std::int64_t elements = 0;
  const weights::Tracking tracking = !context.records              ? weights::Tracking::none
                                     : context.is_recurrent_weight ? weights::Tracking::often
                                                                   : weights::Tracking::recorded;
  Owned cached = is_view ? weights::cached_part(weight, to, tracking, elements)
                         : weights::cached_cast(weight, to, tracking, elements);
  if (!cached) return nullptr;
  ++context.casts;
  if (elements == 0) ++context.cached;
  if (elements > 0) ++context.needed;
  context.made.bytes += tensor::bytes_as(to, std::abs(elements));
  if (context.records && !context.made.recorded) context.made.recorded = host::requires_grad(weight);
  return cached;
}

}  // namespace

bool may_have_cached_cast(const Rule& rule, PyObject* item, CastContext& context) {
  if (!rule.caches_weights) return false;
  if (!host::is_parameter(item)) return host::is_plain_tensor(item) && weights::may_be_part(item);
  if (!context.leaves_casts_to_autocast || !weights::is_too_small_to_record(item)) return true;
  if (!host::grad_is_enabled()) return true;
  ++context.needed;
  return false;
}

void CastContext::count_autocast_cast(PyObject* item, Kind to, std::int64_t elements) {
  has_autocast_casts = true;
  ++casts;
  made.bytes += tensor::bytes_as(to, elements);
  if (!made.recorded) made.recorded = host::requires_grad(item);
}

Owned cast_item(const Rule& rule, PyObject* item, Kind kind, Kind to, CastContext& context) {
  context.transient = false;
  if (!is_floating(kind) || kind == to) return Owned::borrowed(item);
  if (kind == Kind::f32 && may_have_cached_cast(rule, item, context)) {
    if (Owned cached = cached_cast_of(item, !host::is_parameter(item), to, context)) return cached;
    if (PyErr_Occurred() != nullptr) return nullptr;
  }
  if (context.is_recurrent_weight && kind == Kind::f32) {
    if (Owned made = weights::cast_for_many(item, to)) {
      ++context.casts;
      context.made.bytes += tensor::bytes_as(to, host::count_elements(item));
      context.made.recorded = true;
      return made;
    }
  }
  const std::int64_t count = context.leaves_casts_to_autocast ? host::count_elements(item) : 0;
  if (context.leaves_casts_to_autocast && !tensor::is_cast_to_block(count)) {
    context.count_autocast_cast(item, to, count);
    return Owned::borrowed(item);
  }
  const bool saturates = is_number_tensor(rule, item, to);
  if (rules::casts_only_numbers(rule) && !saturates) return Owned::borrowed(item);
  Owned made = saturates                  ? tensor::cast_saturated(item, kind, to, context.made)
               : context.may_reuse_memory ? tensor::cast_transient(item, kind, to, context.made, context.transient)
                                          : tensor::cast(item, kind, to, context.made);
  if (made) ++context.casts;
  return made;
}

namespace {

// Returns a new list or tuple with its tensors cast, or the given one if none is cast. The new one is a plain list or
// tuple: no operation needs the class of another one, such as a named tuple.
Owned cast_sequence(const Rule& rule, PyObject* sequence, Kind to, CastContext& context, int depth) {
  // Not iterated, as in torch: the iterator of a subclass may do anything.
  Owned items(PyTuple_Check(sequence) ? PyTuple_GetSlice(sequence, 0, PyTuple_GET_SIZE(sequence))
                                      : PyList_AsTuple(sequence));
  if (!items) return nullptr;
  const bool may_reuse_memory = std::exchange(context.may_reuse_memory, false);  // the list holds its casts
  context.is_recurrent_weight = rule.is_recurrent && is_lower(to);
  const Py_ssize_t size = PyTuple_GET_SIZE(items.get());
  Owned made(PyTuple_Check(sequence) ? PyTuple_New(size) : PyList_New(size));
  bool is_another = false;
  for (Py_ssize_t i = 0; made && i < size; ++i) {
    PyObject* item = PyTuple_GET_ITEM(items.get(), i);
    const Kind kind = host::kind_of(item);
    Owned value = kind == Kind::sequence && depth < deepest_sequence && may_exchange(rule, item)
                      ? cast_sequence(rule, item, to, context, depth + 1)
                      : cast_item(rule, item, kind, to, context);
    is_another = is_another || value.get() != item;
    if (!value) {
      made.reset();
    } else if (PyTuple_Check(made.get())) {
      PyTuple_SET_ITEM(made.get(), i, value.release());
    } else {
      PyList_SET_ITEM(made.get(), i, value.release());
    }
  }
  context.may_reuse_memory = may_reuse_memory;
  context.is_recurrent_weight = false;
  items.reset();
  return !made || is_another ? std::move(made) : Owned::borrowed(sequence);
}

bool is_called_bias(const Arguments& arguments, Py_ssize_t i) {
  static PyObject* const bias = interned("bias");
  return i >= arguments.positional && same_name(PyTuple_GET_ITEM(arguments.keywords, i - arguments.positional), bias);
}

// True if the kernel takes this argument in float32 beside a lowered input.
bool may_stay_in_float32(const Rule& rule, const Arguments& arguments, Py_ssize_t i) {
  bool raised_only = false;
  bool off_cpu = false;
  if (i < arguments.positional) {
    raised_only = i < 64 && ((rule.castable.raised_positions >> i) & 1U) != 0;
    off_cpu = i < 64 && ((rule.castable.off_cpu_positions >> i) & 1U) != 0;
  } else {
    PyObject* name = PyTuple_GET_ITEM(arguments.keywords, i - arguments.positional);
    raised_only = holds(rule.castable.raised_keywords, name);
    off_cpu = holds(rule.castable.off_cpu_keywords, name);
  }
  return raised_only || (off_cpu && !host::is_off_cpu(arguments.values[i]));
}

}  // namespace

std::optional<double> saturated(PyObject* number, Kind precision) {
  const double value = PyFloat_CheckExact(number) ? PyFloat_AS_DOUBLE(number) : PyLong_AsDouble(number);
  if (value == -1.0 && PyErr_Occurred() != nullptr) {
    clear_error();
    return std::nullopt;
  }
  const double limit = tensor::largest(precision);
  if (!(std::abs(value) > limit) || std::abs(value) > tensor::largest(Kind::f32)) return std::nullopt;
  return std::copysign(limit, value);
}

// The kernel then needs all such arguments in float32. A norm's bias alone does not decide: without a weight, the
// backward needs the bias in the input's precision.
bool one_stays_in_float32(const Rule& rule, const Arguments& arguments, const Reading& reading) {
  if (rule.castable.raised_positions == 0 && rule.castable.off_cpu_positions == 0) return false;
  for (Py_ssize_t i = 0; i < arguments.count(); ++i) {
    if (!may_stay_in_float32(rule, arguments, i)) continue;
    if (rule.castable.raised_positions == 0 && is_called_bias(arguments, i)) continue;
    if (reading.kinds[i] == Kind::f32) return true;
    if (rule.castable.raised_positions == 0) return false;
  }
  return false;
}

inline Owned CastArguments::cast_one(const Rule& rule, const Reading& reading, Py_ssize_t i, Kind to,
                                     bool keeps_float32, CastContext& context) {
  PyObject* const value = given_.values[i];
  const Kind kind = reading.kinds[i];
  if (keeps_float32 && is_floating(kind) && may_stay_in_float32(rule, given_, i)) {
    return cast_item(rule, value, kind, Kind::f32, context);
  }
  if (kind == Kind::sequence) return cast_sequence(rule, value, to, context, 0);
  if (!rule.saturates || to == Kind::f32 || !is_number(value) || !may_cast(rule, given_, i)) {
    return cast_item(rule, value, kind, to, context);
  }
  const std::optional<double> changed = saturated(value, to);
  if (!changed) return Owned::borrowed(value);
  scalar_changed_ = true;
  return Owned(PyFloat_FromDouble(*changed));
}

bool CastArguments::make(const Rule& rule, const Reading& reading, Kind to, CastContext& context) {
  context.made.by_sparse =
      !context.leaves_casts_to_autocast && host::grad_is_enabled() && holds_sparse_tensor(given_, reading);
  const bool keeps_float32 = to != Kind::f32 && one_stays_in_float32(rule, given_, reading);
  for (Py_ssize_t i = 0; i < given_.count(); ++i) {
    Owned made = cast_one(rule, reading, i, to, keeps_float32, context);
    if (!made) return false;
    transient_[i] = std::exchange(context.transient, false);
    values_[i] = made.release();
    ++made_;
  }
  if (rules::tracer != nullptr) [[unlikely]]
    trace_casts(reading, to);
  return true;
}

void CastArguments::trace_casts(const Reading& reading, Kind to) const noexcept {
  for (Py_ssize_t i = 0; i < made_; ++i) {
    if (values_[i] != given_.values[i]) trace_cast(i, reading.kinds[i], to);
  }
}

Owned rounded(PyObject* result, Kind to, CastContext& context) {
  if (PyTuple_CheckExact(result)) {
    Owned all(PyTuple_New(PyTuple_GET_SIZE(result)));
    for (Py_ssize_t i = 0; all && i < PyTuple_GET_SIZE(result); ++i) {
      Owned made = rounded(PyTuple_GET_ITEM(result, i), to, context);
      if (!made) return nullptr;
      PyTuple_SET_ITEM(all.get(), i, made.release());
    }
    return all;
  }
  return host::kind_of(result) == Kind::f32 ? tensor::cast(result, Kind::f32, to, context.made)
                                            : Owned::borrowed(result);
}

}  // namespace habana_mp::engine

#include "engine/attempt.hpp"

#include <algorithm>

#include "engine/originals.hpp"
#include "errors.hpp"
#include "host/casts_inside.hpp"
#include "tensor/buffers.hpp"
#include "tensor/image_order.hpp"
#include "weights/cache.hpp"
#include "weights/packed.hpp"

namespace habana_mp::engine {

namespace {

// Where the arguments are that a packed weight is used with, in a call of so many.
struct PackedPlaces {
  Py_ssize_t input = 0;
  Py_ssize_t weight = 1;
  Py_ssize_t bias = 2;
  Py_ssize_t least = 2;
  Py_ssize_t most = 2;
};

// As modules write them; conv2d with all of its options.
PackedPlaces places_of(weights::Packs what) {
  switch (what) {
    case weights::Packs::linear:
      return {.most = 3};
    case weights::Packs::conv2d:
      return {.least = 7, .most = 7};
    case weights::Packs::addmm:
      return {.input = 1, .weight = 2, .bias = 0, .least = 3, .most = 3};
    default:
      return {};
  }
}

// The weight with whose transposed view a call is written. A new reference; null where it is none.
PyObject* weight_behind(PyObject* given) {
  return host::is_plain_tensor(given) && weights::may_be_part(given) ? weights::transposed_weight(given) : nullptr;
}

// Answers a call whose input and bias, of these kinds, are still to be cast. As answer_from_packed.
PyObject* cast_and_answer(const Rule& rule, weights::PackedCall& call, Kind input_kind, Kind bias_kind, Kind to,
                          Tally& tally) {
  // What the weight of a product tells costs less than the rest; a convolution's depends on how its input lies.
  if (call.is_product() && !weights::may_be_packed(call, to)) return nullptr;
  if (host::is_traced()) return nullptr;
  if (!call.is_product()) {
    call.reorders = tensor::is_channels_first(call.input);
    if (!call.reorders && !tensor::is_channels_last(call.input)) return nullptr;
    if (!weights::may_be_packed(call, to)) return nullptr;
  }
  Tally made;
  made.may_reuse_memory = true;
  PyObject* const bias = call.bias;
  call.input = cast_item(rule, call.input, input_kind, to, made);
  const bool input_for_now = made.for_now;
  call.bias = call.input == nullptr ? nullptr
              : bias == Py_None     ? Py_NewRef(Py_None)
                                    : cast_item(rule, bias, bias_kind, to, made);
  const bool bias_for_now = made.for_now && bias != Py_None;
  PyObject* result = call.bias == nullptr ? nullptr : weights::answer(call, to);
  if (call.input != nullptr) let_go(call.input, input_for_now);
  if (call.bias != nullptr) let_go(call.bias, bias_for_now);
  if (result == nullptr) {
    drop_error();
    return nullptr;
  }
  ++made.casts;
  ++made.kept;
  tally = made;
  return result;
}

// A product or convolution of a float32 weight where nothing is recorded, from the weight's packed form. Null, without
// an exception, where the call is to be made the ordinary way.
PyObject* answer_from_packed(const Call& call, Kind to, Tally& tally) {
  const Arguments& arguments = call.arguments;
  const Reading& reading = call.reading;
  const weights::Packs packs = call.rule.means.packs;
  const PackedPlaces places = places_of(packs);
  const Py_ssize_t count = arguments.positional;
  if (arguments.keywords != nullptr || count < places.least || count > places.most) return nullptr;
  PyObject* const* values = arguments.values;
  PyObject* input = values[places.input];
  PyObject* given = values[places.weight];
  PyObject* bias = places.bias < count ? values[places.bias] : Py_None;
  if (reading.kinds[places.weight] != Kind::f32 || !host::is_plain_tensor(input) ||
      !is_floating(reading.kinds[places.input])) {
    return nullptr;
  }
  weights::PackedCall packed{.what = packs, .input = input, .bias = bias};
  packed.transposed = Py_TYPE(given) != host::api.parameter;
  if (!weights::may_pack(packed)) return nullptr;
  if (bias == Py_None && packs == weights::Packs::addmm) return nullptr;  // torch refuses it
  const Kind bias_kind = bias == Py_None ? Kind::other : reading.kinds[places.bias];
  if (bias != Py_None && (!host::is_plain_tensor(bias) || !is_floating(bias_kind))) return nullptr;
  if (!packed.is_product()) {
    for (Py_ssize_t i = 3; i < 6; ++i) {
      if (!PyTuple_Check(values[i])) return nullptr;
    }
    packed.options = values + 3;
  }
  packed.weight = packed.transposed ? weight_behind(given) : Py_NewRef(given);
  if (packed.weight == nullptr) return nullptr;
  // A weight's product with itself needs its plain cast besides.
  const bool is_by_itself = input == packed.weight || input == given;
  PyObject* result =
      is_by_itself ? nullptr : cast_and_answer(call.rule, packed, reading.kinds[places.input], bias_kind, to, tally);
  Py_DECREF(packed.weight);
  return result;
}

// Shall torch itself cast, within its operation? Only where it casts nothing else than we would.
bool may_leave_casts(const Call& call) {
  const auto& [target, rule, arguments, reading] = call;
  if (!rule.means.casts_inside || rule.action != Action::precision || rule.to == Kind::f32) return false;
  if (target.shape != host::Shape::function && target.shape != host::Shape::method) return false;
  for (Py_ssize_t i = 0; i < arguments.count(); ++i) {
    if (reading.kinds[i] == Kind::sequence) return false;
    if (is_floating(reading.kinds[i]) && !host::can_be_cast_inside(arguments.values[i])) return false;
  }
  return host::may_cast_inside() && !host::is_intercepted();
}

PyObject* call_and_cast_inside(Target& target, const Arguments& arguments, Kind to) {
  const host::CastsInside on(to);
  return call_unseen(target, arguments);
}

// The place of the last list among the arguments, which holds the weights of a recurrent layer; -1 where there is none.
Py_ssize_t place_of_weights(const Call& call) {
  Py_ssize_t place = call.arguments.count() - 1;
  while (place >= 0 && call.reading.kinds[place] != Kind::sequence) --place;
  return place;
}

// Are all tensors of this list plain?
bool are_plain(PyObject* list) {
  return std::all_of(PySequence_Fast_ITEMS(list), PySequence_Fast_ITEMS(list) + PySequence_Fast_GET_SIZE(list),
                     [](PyObject* item) { return host::is_plain_tensor(item); });
}

// Where nothing is recorded a cast wants no gradient, and then torch makes the products of sequences that lie one after
// another one by one. So these get another tensor of the same memory, which says that it wants one. `made` is ours.
bool fold_products(PyObject* made) {
  static PyObject* const detach = PyUnicode_InternFromString("detach");
  static PyObject* const requires_grad = PyUnicode_InternFromString("requires_grad_");
  PyObject** const items = PySequence_Fast_ITEMS(made);
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(made); ++i) {
    if (Py_TYPE(items[i]) != host::api.tensor || host::requires_grad(items[i])) continue;
    PyObject* const other = PyObject_CallMethodNoArgs(items[i], detach);
    PyObject* const same = other == nullptr ? nullptr : PyObject_CallMethodNoArgs(other, requires_grad);
    Py_XDECREF(other);
    if (same == nullptr) return false;
    Py_SETREF(items[i], same);
  }
  return true;
}

// The casts of a call; those of a recurrent layer's weights as its products want them.
bool make_casts(const Call& call, Kind to, bool records, CastArguments& cast, Attempt& attempt) {
  if (!cast.make(call.rule, call.reading, to, attempt.tally)) return false;
  if (!call.rule.means.takes_steps || attempt.is_fused || records || to == Kind::f32) return true;
  const Py_ssize_t place = place_of_weights(call);
  PyObject* const made = place < 0 ? nullptr : cast.arguments().values[place];
  return made == nullptr || made == call.arguments.values[place] || fold_products(made);
}

// Torch's autocast lowers what goes into each product. The weights are cast before, since every step takes them; where
// somebody watches, or they are no plain tensors, torch does it.
PyObject* attempt_products_inside(const Call& call, Kind to, Attempt& attempt) {
  const Arguments& arguments = call.arguments;
  const Py_ssize_t place = place_of_weights(call);
  if (place < 0 || host::is_traced() || !are_plain(arguments.values[place])) {
    for (Py_ssize_t i = 0; place >= 0 && i < PySequence_Fast_GET_SIZE(arguments.values[place]); ++i) {
      if (host::kind_of(PySequence_Fast_GET_ITEM(arguments.values[place], i)) == Kind::f32) ++attempt.tally.casts;
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

PyObject* attempt_as_they_lie(const Call& call, Kind to, bool records, Attempt& attempt) {
  Tally& tally = attempt.tally;
  const Rule& rule = call.rule;
  if (rule.means.packs != weights::Packs::nothing && to == Kind::bf16 && !records) {
    if (PyObject* result = answer_from_packed(call, to, tally)) return result;
    attempt.interrupted = PyErr_Occurred() != nullptr;
    if (attempt.interrupted) return nullptr;
  }
  // Where something is recorded the graph holds what was cast.
  tally.may_reuse_memory = !records && rule.takes_weights_once() && call.target.shape != host::Shape::python;
  tally.leaves_casts = records && may_leave_casts(call);
  CastArguments cast(call.arguments);
  attempt.made = make_casts(call, to, records, cast, attempt);
  attempt.scalar_changed = cast.scalar_changed();
  if (!attempt.made) return nullptr;
  return tally.left_casts ? call_and_cast_inside(call.target, cast.arguments(), to)
                          : call_unseen(call.target, cast.arguments());
}

// Is there a bias to be added to a product?
bool has_bias(const Arguments& arguments) { return arguments.positional == 3 && arguments.values[2] != Py_None; }

// Is it a product of rows that do not lie evenly, and of a matrix?
bool is_of_uneven_rows(const Arguments& arguments, const Reading& reading) {
  if (arguments.keywords != nullptr || arguments.positional < 2 || arguments.positional > 3) return false;
  const Py_ssize_t tensors = has_bias(arguments) ? 3 : 2;
  for (Py_ssize_t i = 0; i < tensors; ++i) {
    if (!is_floating(reading.kinds[i]) || !host::is_plain_tensor(arguments.values[i])) return false;
  }
  DLTensor matrix;
  return tensor::has_uneven_rows(arguments.values[0], !has_bias(arguments)) &&
         host::view_on_cpu(arguments.values[1], matrix) && matrix.ndim == 2;
}

// Torch makes such a product first, and then adds the bias to what was rounded.
bool add_bias(const Rule& rule, PyObject* result, PyObject* bias, Kind kind, Kind to, Tally& tally) {
  PyObject* cast = cast_item(rule, bias, kind, to, tally);
  if (cast == nullptr) return false;
  const bool added = tensor::add_in_place(result, cast);
  let_go(cast, tally.for_now);
  return added;
}

// The same for a tracer's tensor, which has no memory yet: the copy becomes a part of what is traced.
PyObject* attempt_in_traced_rows(const Call& call, Kind to, Attempt& attempt) {
  const Arguments& arguments = call.arguments;
  PyObject* rows =
      PyObject_CallFunctionObjArgs(call.rule.means.in_rows, arguments.values[0], arguments.values[1], nullptr);
  attempt.interrupted = rows == nullptr && PyErr_ExceptionMatches(PyExc_Exception) == 0;
  if (attempt.interrupted) return nullptr;
  PyErr_Clear();
  SmallBuffer<PyObject*> values(arguments.count());
  std::copy_n(arguments.values, arguments.count(), values.data());
  if (rows != nullptr) values[0] = rows;
  const Arguments given{values.data(), arguments.positional, arguments.keywords};
  PyObject* result = attempt_as_they_lie({call.target, call.rule, given, call.reading}, to, false, attempt);
  Py_XDECREF(rows);
  return result;
}

PyObject* attempt_in_rows(const Call& call, Kind to, Attempt& attempt) {
  const auto& [target, rule, arguments, reading] = call;
  tensor::CastResult seen;
  PyObject* const rows = tensor::cast_in_rows(arguments.values[0], reading.kinds[0], to, seen);
  if (rows == nullptr) return attempt_as_they_lie(call, to, false, attempt);
  PyObject* const values[] = {rows, arguments.values[1]};
  Reading in_rows(2);
  in_rows.present = reading.present;
  in_rows.kinds[0] = to;
  in_rows.kinds[1] = reading.kinds[1];
  const Arguments given{values, 2, nullptr};
  PyObject* result = attempt_as_they_lie({target, rule, given, in_rows}, to, false, attempt);
  tensor::give_back(rows);
  if (reading.kinds[0] != to) {
    ++attempt.tally.casts;
    attempt.tally.made.bytes += seen.bytes;
  }
  if (result != nullptr && has_bias(arguments) &&
      !add_bias(rule, result, arguments.values[2], reading.kinds[2], to, attempt.tally)) {
    Py_CLEAR(result);
  }
  return result;
}

}  // namespace

bool may_lower_products(const Call& call, Kind to) {
  if (!host::may_cast_inside() || host::is_recorded_by_torch()) return false;
  const auto is_known = [to](PyObject* value) {
    const Kind kind = host::kind_of(value);
    return !is_floating(kind) || ((kind == Kind::f32 || kind == to) && !host::is_off_cpu(value));
  };
  for (Py_ssize_t i = 0; i < call.arguments.count(); ++i) {
    PyObject* const value = call.arguments.values[i];
    if (call.reading.kinds[i] != Kind::sequence) {
      if (!is_known(value)) return false;
      continue;
    }
    // Of a copy: a subclass is asked in Python for its device, and may change the list.
    PyObject* const items = PyTuple_Check(value) ? Py_NewRef(value) : PyList_AsTuple(value);
    bool known = items != nullptr;
    for (Py_ssize_t j = 0; known && j < PyTuple_GET_SIZE(items); ++j) known = is_known(PyTuple_GET_ITEM(items, j));
    Py_XDECREF(items);
    if (!known) return false;
  }
  return true;
}

PyObject* attempt_with_casts(const Call& call, Kind to, Attempt& attempt) {
  const Arguments& arguments = call.arguments;
  if (attempt.is_inside) return attempt_products_inside(call, to, attempt);
  const bool records = host::grad_is_enabled();
  if (call.rule.means.in_rows != nullptr && !records && to != Kind::f32) {
    if (is_of_uneven_rows(arguments, call.reading)) return attempt_in_rows(call, to, attempt);
    if (arguments.positional > 1 && host::holds_subclass(arguments.values, 1) && host::is_intercepted()) {
      return attempt_in_traced_rows(call, to, attempt);
    }
  }
  return attempt_as_they_lie(call, to, records, attempt);
}

}  // namespace habana_mp::engine

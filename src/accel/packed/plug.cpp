#include <new>
#include <string>
#include <utility>

#include "accel/packed/image_order.hpp"
#include "accel/packed/packed.hpp"
#include "engine/accelerators.hpp"
#include "errors.hpp"
#include "host/tensors.hpp"
#include "module_parts.hpp"
#include "pybind.hpp"
#include "weights/cache.hpp"

namespace py = pybind11;

namespace habana_mp::accel {

using engine::Arguments;
using engine::Call;
using engine::cast_item;
using engine::CastContext;
using engine::Reading;
using engine::Rule;

namespace {

// The positions of the arguments of a call that may use a packed weight, and the smallest and largest number of its
// arguments.
struct ArgumentPositions {
  Py_ssize_t input = 0;
  Py_ssize_t weight = 1;
  Py_ssize_t bias = 2;
  Py_ssize_t least = 2;
  Py_ssize_t most = 2;
};

// Returns the positions in calls as torch's modules write them. A call of conv2d has all of its options.
ArgumentPositions positions_of(Packs what) {
  switch (what) {
    case Packs::linear:
      return {.most = 3};
    case Packs::conv2d:
      return {.least = 7, .most = 7};
    case Packs::addmm:
      return {.input = 1, .weight = 2, .bias = 0, .least = 3, .most = 3};
    default:
      return {};
  }
}

// If the call is written with the transposed view of a weight, returns the weight, else null.
Owned weight_behind(PyObject* given) {
  return host::is_plain_tensor(given) && weights::may_be_part(given) ? weights::transposed_weight(given) : nullptr;
}

// Returns the same as `answer_from_packed`, for a call whose input and bias have these kinds and are not cast yet.
Owned cast_and_answer(const Rule& rule, PackedCall& call, Kind input_kind, Kind bias_kind, Kind to,
                      CastContext& context) {
  // The weight of a product is checked first, since that is the cheapest check. The check of a convolution's weight
  // depends on the layout of the input.
  if (call.is_product() && !may_be_packed(call, to)) return nullptr;
  if (host::is_traced()) return nullptr;
  if (!call.is_product()) {
    call.reorders = is_channels_first(call.input);
    if (!call.reorders && !is_channels_last(call.input)) return nullptr;
    if (!may_be_packed(call, to)) return nullptr;
  }
  CastContext made;
  made.may_reuse_memory = true;
  const bool has_bias = call.bias != Py_None;
  Owned made_input = cast_item(rule, call.input, input_kind, to, made);
  const tensor::Transient input(std::move(made_input), made.transient);
  Owned made_bias;
  if (input) made_bias = has_bias ? cast_item(rule, call.bias, bias_kind, to, made) : Owned::borrowed(Py_None);
  const tensor::Transient bias(std::move(made_bias), made.transient && has_bias);
  call.input = input.get();
  call.bias = bias.get();
  Owned result = bias ? compute_from_packed(call, to) : nullptr;
  if (!result) {
    drop_error();
    return nullptr;
  }
  ++made.casts;
  ++made.cached;
  context = made;
  return result;
}

// Returns the same as `answer_from_packed`, but throws std::bad_alloc when memory runs out.
Owned try_packed(const Call& call, Kind to, CastContext& context) {
  const Arguments& arguments = call.arguments;
  const Reading& reading = call.reading;
  const Packs packs = call.rule.execution.packs;
  const ArgumentPositions positions = positions_of(packs);
  const Py_ssize_t count = arguments.positional;
  if (arguments.keywords != nullptr || count < positions.least || count > positions.most) return nullptr;
  PyObject* const* values = arguments.values;
  PyObject* input = values[positions.input];
  PyObject* given = values[positions.weight];
  PyObject* bias = positions.bias < count ? values[positions.bias] : Py_None;
  if (reading.kinds[positions.weight] != Kind::f32 || !host::is_plain_tensor(input) ||
      !is_floating(reading.kinds[positions.input])) {
    return nullptr;
  }
  PackedCall packed{.what = packs, .input = input, .bias = bias};
  packed.transposed = !host::is_parameter(given);
  if (!may_pack(packed)) return nullptr;
  if (bias == Py_None && packs == Packs::addmm) return nullptr;  // torch refuses it
  const Kind bias_kind = bias == Py_None ? Kind::other : reading.kinds[positions.bias];
  if (bias != Py_None && (!host::is_plain_tensor(bias) || !is_floating(bias_kind))) return nullptr;
  if (!packed.is_product()) {
    for (Py_ssize_t i = 3; i < 6; ++i) {
      if (!PyTuple_Check(values[i])) return nullptr;
    }
    packed.options = values + 3;
  }
  const Owned weight = packed.transposed ? weight_behind(given) : Owned::borrowed(given);
  if (!weight) return nullptr;
  packed.weight = weight.get();
  // A product of the weight with itself needs the plain cast as well.
  const bool is_by_itself = input == packed.weight || input == given;
  return is_by_itself ? nullptr
                      : cast_and_answer(call.rule, packed, reading.kinds[positions.input], bias_kind, to, context);
}

// Returns the result of a product or convolution that autograd does not track, computed from the packed form of its
// float32 weight. Returns null if the call is to be made in the ordinary way; an exception is set only for an
// interrupt.
Owned answer_from_packed(const Call& call, Kind to, CastContext& context) {
  try {
    return try_packed(call, to, context);
  } catch (const std::bad_alloc&) {
    drop_error();
    return nullptr;
  }
}

Owned held_or_null(const py::object& one) { return Owned::borrowed_or_null(one.is_none() ? nullptr : one.ptr()); }

void add_to(py::module_& module) {
  module.def("weights_set_packing",
             [](const std::string& what, const py::object& pack, const py::object& call, const py::object& plain) {
               set_packing(weights::packs_named(what), {held_or_null(pack), held_or_null(call), held_or_null(plain)});
             });
  module.def("weights_assume_packing", [](const std::string& what) {
    assume_packing(what == "nothing"               ? Assumed::nothing
                   : what == "library"             ? Assumed::library
                   : what == "panels"              ? Assumed::panels
                   : what == "panels in any order" ? Assumed::panels_in_any_order
                                                   : Assumed::measured);
  });
}

[[maybe_unused]] const bool is_plugged_in = [] {
  engine::accelerators.answer_from_packed = &answer_from_packed;
  module_parts().push_back({"packed", &add_to});
  return true;
}();

}  // namespace

}  // namespace habana_mp::accel

#include <array>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "accel/products/image_order.hpp"
#include "accel/products/library.hpp"
#include "accel/products/own_products.hpp"
#include "accel/products/packed_weights.hpp"
#include "engine/accelerators.hpp"
#include "errors.hpp"
#include "host/tensors.hpp"
#include "kernels/product.hpp"
#include "module_parts.hpp"
#include "pybind.hpp"
#include "weights/cache.hpp"

namespace py = pybind11;

namespace habana_mp::accel {

using engine::Arguments;
using engine::Call;
using engine::cast_item;
using engine::CastContext;
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

// True for a torch.nn.Parameter or a view of one. Each kind of call is tried, so products of two activations, whose
// sizes may differ from call to call, are left to torch.
bool is_weight(PyObject* given) {
  if (host::is_parameter(given)) return true;
  const Owned base = host::base_of(given);
  clear_error();
  return base && host::is_parameter(base.get());
}

// The kinds of the arguments, which are not cast yet.
struct KindsOfArguments {
  Kind input;
  Kind weight;
  Kind bias;
};

// The casts of an input and a bias, or of an input, a weight and a bias.
class Casts {
 public:
  explicit Casts(const Rule& rule, Kind to) : rule_(rule), to_(to) { context_.may_reuse_memory = true; }

  // Replaces an argument by its cast. Returns false if that fails.
  bool replace(PyObject*& argument, Kind kind) {
    if (argument == Py_None) return true;
    Owned made = cast_item(rule_, argument, kind, to_, context_);
    argument = made.get();
    held_[count_++].emplace(std::move(made), context_.transient);
    return argument != nullptr;
  }
  [[nodiscard]] CastContext& context() { return context_; }

 private:
  const Rule& rule_;
  Kind to_;
  CastContext context_;
  std::array<std::optional<tensor::Transient>, 3> held_;
  std::size_t count_ = 0;
};

// Returns the product, computed by our own kernels. Returns null if the call is to be made in another way.
Owned multiply_by_own_kernels(const Rule& rule, WeightCall call, const KindsOfArguments& kinds, Kind to,
                              CastContext& context) {
  if (!may_multiply(call)) return nullptr;
  const std::optional<ProductCase> one = product_case_of(call);
  if (!one || !is_worth_multiplying(*one) || !is_weight(call.weight)) return nullptr;
  const std::optional<Sums>* const known = known_sums(*one);
  const bool is_tried = known != nullptr;
  std::optional<Sums> sums = is_tried ? *known : std::nullopt;
  if ((is_tried && !sums) || !is_in_use() || host::is_traced()) return nullptr;
  Casts casts(rule, to);
  if (!casts.replace(call.input, kinds.input) || !casts.replace(call.weight, kinds.weight) ||
      !casts.replace(call.bias, kinds.bias)) {
    return nullptr;
  }
  if (!is_tried) sums = try_sums(*one, call);
  Owned result = sums ? multiply(*one, call, *sums) : nullptr;
  if (result) context = casts.context();
  return result;
}

// Returns the result, computed from the packed form of a torch.nn.Parameter in float32. Returns null if the call is to
// be made in another way.
Owned compute_by_library(const Rule& rule, WeightCall call, const KindsOfArguments& kinds, Kind to,
                         CastContext& context) {
  if (!may_pack(call) || kinds.weight != Kind::f32 || !host::is_parameter(call.weight) || call.input == call.weight) {
    return nullptr;
  }
  // The weight of a product is checked first, since that is the cheapest check. The check of a convolution's weight
  // depends on the layout of the input.
  if (call.is_product() && !may_be_packed(call, to)) return nullptr;
  if (host::is_traced()) return nullptr;
  if (!call.is_product()) {
    call.reorders = is_channels_first(call.input);
    if (!call.reorders && !is_channels_last(call.input)) return nullptr;
    if (!may_be_packed(call, to)) return nullptr;
  }
  Casts casts(rule, to);
  if (!casts.replace(call.input, kinds.input) || !casts.replace(call.bias, kinds.bias)) return nullptr;
  Owned result = compute_from_packed(call, to);
  if (!result) return nullptr;
  context = casts.context();
  ++context.casts;
  ++context.cached;
  return result;
}

// Returns the same as `answer_from_weight`, but throws std::bad_alloc when memory runs out.
Owned try_to_answer(const Call& call, Kind to, CastContext& context) {
  const Arguments& arguments = call.arguments;
  const Packs packs = call.rule.execution.packs;
  const ArgumentPositions positions = positions_of(packs);
  const Py_ssize_t count = arguments.positional;
  if (arguments.keywords != nullptr || count < positions.least || count > positions.most) return nullptr;
  // Only our own kernels compute products with a weight that is in bfloat16 itself.
  if (call.reading.kinds[positions.weight] == to && !kernels::can_multiply()) return nullptr;
  PyObject* const* values = arguments.values;
  WeightCall made{.what = packs,
                  .input = values[positions.input],
                  .weight = values[positions.weight],
                  .bias = positions.bias < count ? values[positions.bias] : Py_None};
  if (host::is_plain_on_accelerator(made.input)) return nullptr;
  const auto kind_at = [&](Py_ssize_t at) { return call.reading.kinds[at]; };
  const KindsOfArguments kinds{kind_at(positions.input), kind_at(positions.weight),
                               made.bias == Py_None ? Kind::other : kind_at(positions.bias)};
  const auto is_usable = [](PyObject* value, Kind kind) { return host::is_plain_tensor(value) && is_floating(kind); };
  if (!is_usable(made.input, kinds.input) || !is_usable(made.weight, kinds.weight)) return nullptr;
  if (made.bias == Py_None ? packs == Packs::addmm : !is_usable(made.bias, kinds.bias)) return nullptr;
  if (!made.is_product()) {
    for (Py_ssize_t i = 3; i < 6; ++i) {
      if (!PyTuple_Check(values[i])) return nullptr;
    }
    made.options = values + 3;
  }
  Owned result = multiply_by_own_kernels(call.rule, made, kinds, to, context);
  drop_error();
  if (!result && PyErr_Occurred() == nullptr) result = compute_by_library(call.rule, made, kinds, to, context);
  drop_error();
  return result;
}

// Returns the result of a product or convolution that autograd does not track: a product by our own kernels, or either
// from a packed weight. Returns null if the call is to be made in the ordinary way; an exception is set only for an
// interrupt.
Owned answer_from_weight(const Call& call, Kind to, CastContext& context) {
  try {
    return try_to_answer(call, to, context);
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
  module.def("weights_assume_products", [](const std::string& what) {
    assume_products(what == "nothing"            ? Assumed::nothing
                    : what == "library"          ? Assumed::library
                    : what == "own in any order" ? Assumed::own_in_any_order
                                                 : Assumed::measured);
  });
}

[[maybe_unused]] const bool is_plugged_in = [] {
  engine::accelerators.answer_from_weight = &answer_from_weight;
  module_parts().push_back({"products", &add_to});
  return true;
}();

}  // namespace

}  // namespace habana_mp::accel

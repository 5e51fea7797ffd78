#include "engine/products.hpp"

#include <utility>

#include "engine/accelerators.hpp"
#include "engine/originals.hpp"
#include "engine/results.hpp"
#include "errors.hpp"
#include "host/casts_inside.hpp"
#include "host/modes.hpp"
#include "host/tensors.hpp"

namespace habana_mp::engine {

NeverDestroyed<ProductSettings> product_settings;

namespace {

// Operands with fewer values together are left to torch where autograd tracks the call: a function in Python would cost
// more than it gains.
constexpr std::int64_t least_values_tracked = 1 << 13;

// A look at the tensors of a call.
struct Operands {
  bool are_plain = true;  // all floating ones are ordinary tensors on the CPU
  bool are_tracked = false;
  std::int64_t values = 0;
};

void look_at(PyObject* value, Operands& seen) {
  const Kind kind = host::kind_of(value);
  if (kind == Kind::sequence) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i) look_at(PySequence_Fast_GET_ITEM(value, i), seen);
  }
  if (!is_floating(kind)) return;
  if (!host::is_plain_on_cpu(value)) {
    seen.are_plain = false;
    return;
  }
  seen.are_tracked = seen.are_tracked || host::requires_grad(value);
  seen.values += host::count_elements(value);
}

Operands look_at(const Arguments& arguments) {
  Operands seen;
  for (Py_ssize_t i = 0; i < arguments.count(); ++i) look_at(arguments.values[i], seen);
  return seen;
}

// Makes the call in float32 with the values that the operands have, and rounds the result.
Owned compute_in_float32(const Call& call, const Arguments& arguments, Kind to, bool records) {
  Reading reading(arguments.count());
  read(call.rule, arguments, reading);
  CastContext context;
  context.may_reuse_memory = !records && call.rule.takes_weights_once();
  CastArguments wide(arguments);
  if (!wide.make(call.rule, reading, Kind::f32, context)) return nullptr;
  const Owned sum(call_without_modes(call.target, wide.arguments()));
  return sum ? rounded(sum.get(), to, context) : nullptr;
}

// Calls the function for calls that autograd tracks. Returns null without an exception if there is none, or if it does
// not take such a call.
Owned call_tracked(ProductForm form, const Arguments& arguments) {
  const Owned function = Owned::borrowed_or_null(product_settings->tracked[static_cast<std::size_t>(form)].get());
  if (!function) return nullptr;
  Owned result(PyObject_Vectorcall(function.get(), arguments.values, static_cast<std::size_t>(arguments.positional),
                                   arguments.keywords));
  return result.get() == Py_NotImplemented ? nullptr : std::move(result);
}

}  // namespace

Owned call_lowered(const Call& call, const Arguments& arguments, Kind to, bool records, bool in_float32) {
  const ProductForm form = call.rule.execution.form;
  const auto by_torch = [&] { return Owned(call_without_modes(call.target, arguments)); };
  if (form == ProductForm::none || !host::autocast_is_off()) return by_torch();
  const bool is_traced = host::is_traced();
  if (in_float32 && is_traced) return compute_in_float32(call, arguments, to, records);
  in_float32 = in_float32 || lacks_instructions(to);
  if (is_traced || (records && !in_float32)) return by_torch();
  const Operands operands = records || in_float32 ? look_at(arguments) : Operands();
  if (!operands.are_plain) return by_torch();
  if (!records || !operands.are_tracked) {
    if (accelerators.multiply != nullptr && has_weight(form)) {
      Owned result = accelerators.multiply(form, arguments, to);
      if (result || PyErr_Occurred() != nullptr) return result;
    }
  } else if (operands.values >= least_values_tracked) {
    Owned result = call_tracked(form, arguments);
    if (result || PyErr_Occurred() != nullptr) return result;
  } else if (lacks_instructions(to)) {
    return by_torch();
  }
  return in_float32 ? compute_in_float32(call, arguments, to, records) : by_torch();
}

}  // namespace habana_mp::engine

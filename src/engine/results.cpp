#include "engine/results.hpp"

#include <algorithm>

#include "engine/region.hpp"
#include "host/tensors.hpp"
#include "weights/cache.hpp"

namespace habana_mp::engine {

namespace {

// True if the call returned one of its arguments, as in-place operations do. Such a tensor is the user's, or is
// remembered already.
bool is_argument(PyObject* result, const Arguments& arguments) {
  PyObject* const* const end = arguments.values + arguments.count();
  return std::find(arguments.values, end, result) != end;
}

// Counts a call that writes lower values into a weight in float32, as the step of an optimizer does that is no
// torch.optim's and that the lists reach.
void note_update_of_weight(const Arguments& arguments) {
  PyObject* target = arguments.values[0];
  if (host::kind_of(target) == Kind::sequence && PySequence_Fast_GET_SIZE(target) != 0) {
    target = PySequence_Fast_GET_ITEM(target, 0);
  }
  if (!host::is_tensor_base(target)) return;
  const bool is_weight = host::is_parameter(target) || weights::is_weight_memory(target);
  if (is_weight && holds_lower_tensor(arguments)) ++lower_updates;
}

}  // namespace

std::uint64_t lower_updates = 0;

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

bool remember_if_lowered(const Facts& facts, const rules::Plan& plan, const CastContext& context, PyObject* result) {
  if (context.casts == 0) return true;
  if (!is_lower(plan.to)) {
    if (facts.rule.action == Action::in_place) note_update_of_weight(facts.arguments);
    return true;
  }
  if (result == Py_None || is_argument(result, facts.arguments)) return true;
  const bool sums_lowered = plan.computed_in != plan.to && holds_lowered_tensor(facts.arguments);
  if (!rules::must_cast(plan.to, facts.reading) && !sums_lowered) return true;
  if (!context.made.recorded) return remember_lowered(result);
  const RuleSet* region = thread_state.region;
  if (region == nullptr || region->after_tracked_cast == nullptr) return true;
  return static_cast<bool>(Owned(PyObject_CallOneArg(region->after_tracked_cast, result)));
}

}  // namespace habana_mp::engine

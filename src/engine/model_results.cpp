#include "engine/model_results.hpp"

#include <utility>

#include "engine/modules.hpp"
#include "engine/region.hpp"
#include "engine/state.hpp"
#include "host/tensors.hpp"
#include "tensor/cast.hpp"

namespace habana_mp::engine {

ModelResults model_results;

namespace {

Kind lower_kind = Kind::other;
NeverDestroyed<Owned> converter;

// True if lists lower in a call of this module, and no region that the user has opened decides there.
bool is_lowered(PyObject* module) noexcept {
  const ThreadState& state = thread_state;
  if (casts_are_disabled() || state.lists_suspended) return false;
  if (lists_wait_for_a_module()) return begins_to_apply_lists(module);
  return policy_is_installed && base_of(state.region) == nullptr;
}

// True for arguments that hold no tensor.
bool is_plain_value(PyObject* value) noexcept {
  return value == Py_None || PyLong_Check(value) || PyFloat_Check(value) || PyUnicode_Check(value);
}

}  // namespace

void set_model_results(Kind lower, PyObject* convert) noexcept {
  lower_kind = lower;
  *converter = Owned::borrowed_or_null(convert);
}

ModelCall::ModelCall(PyObject* module) noexcept
    : is_outermost_(lower_kind != Kind::other && !thread_state.in_model && is_lowered(module)) {
  if (!is_outermost_) return;
  thread_state.in_model = true;
  used_before_ = std::exchange(thread_state.used_lower_parameter, false);
}

ModelCall::~ModelCall() {
  if (!is_outermost_) return;
  thread_state.in_model = false;
  thread_state.used_lower_parameter = used_before_;
}

PyObject* ModelCall::leave(PyObject* result, const Arguments& arguments) const {
  if (result == nullptr || !is_outermost_ || thread_state.used_lower_parameter) return result;
  const Kind kind = host::kind_of(result);
  if (result == Py_None || (kind != Kind::sequence && kind != Kind::other && kind != lower_kind)) return result;
  bool are_tensors = kind == lower_kind;
  for (Py_ssize_t i = 1; i < arguments.count(); ++i) {
    const Kind given = host::kind_of(arguments.values[i]);
    if (given == lower_kind) return result;
    are_tensors = are_tensors && (is_floating(given) || is_plain_value(arguments.values[i]));
  }
  const Owned held(result);
  if (are_tensors) {
    tensor::CastResult made;
    Owned left = tensor::cast(result, kind, Kind::f32, made);
    model_results.tensors += 1;
    model_results.bytes += made.bytes;
    return left.release();
  }
  const Owned function = Owned::borrowed_or_null(converter->get());
  const Owned given = positional_of({arguments.values + 1, arguments.positional - 1, nullptr});
  const Owned keywords = keywords_of(arguments);
  if (!given || !keywords) return nullptr;
  return PyObject_CallFunctionObjArgs(function.get(), result, given.get(), keywords.get(), nullptr);
}

void note_lower_parameters(const Arguments& arguments) noexcept {
  const auto note = [](PyObject* value) {
    if (host::is_parameter(value) && is_lower(host::kind_of_tensor(value))) thread_state.used_lower_parameter = true;
  };
  for (Py_ssize_t i = 0; i < arguments.count(); ++i) {
    PyObject* const value = arguments.values[i];
    note(value);
    if (host::kind_of(value) != Kind::sequence) continue;
    for (Py_ssize_t j = 0; j < PySequence_Fast_GET_SIZE(value); ++j) note(PySequence_Fast_GET_ITEM(value, j));
  }
}

}  // namespace habana_mp::engine

#include "engine/model_results.hpp"

#include <utility>

#include "engine/modules.hpp"
#include "engine/region.hpp"
#include "engine/state.hpp"
#include "errors.hpp"
#include "host/tensors.hpp"
#include "tensor/cast.hpp"

namespace habana_mp::engine {

ModelResults model_results;

namespace {

NeverDestroyed<ResultSettings> settings;

// True if lists lower in a call of this module, and no region that the user has opened decides there.
bool is_lowered(PyObject* module) noexcept {
  const ThreadState& state = thread_state;
  if (casts_are_disabled() || state.lists_suspended) return false;
  if (lists_wait_for_a_module()) return begins_to_apply_lists(module);
  return policy_is_installed && base_of(state.region) == nullptr;
}

// True if an argument is such a tensor, or holds one.
bool hold_tensor_of(const Arguments& arguments, Kind lower, PyObject* holds) {
  for (Py_ssize_t i = 1; i < arguments.count(); ++i) {
    PyObject* const value = arguments.values[i];
    const Kind kind = host::kind_of(value);
    if (kind == lower) return true;
    if (kind != Kind::other && kind != Kind::sequence) continue;
    if (value == Py_None || PyLong_Check(value) || PyFloat_Check(value) || PyUnicode_Check(value)) continue;
    const Owned answer(PyObject_CallOneArg(holds, value));
    if (!answer) HeldError().drop();
    if (answer.get() == Py_True) return true;
  }
  return false;
}

}  // namespace

void set_model_results(ResultSettings wanted) noexcept {
  const ResultSettings former = std::exchange(*settings, std::move(wanted));
}

ModelCall::ModelCall(const Arguments& arguments)
    : is_outermost_(settings->lower != Kind::other && !thread_state.in_model && is_lowered(arguments.values[0])) {
  if (!is_outermost_) return;
  convert_ = Owned::borrowed(settings->convert.get());
  const Kind lower = settings->lower;
  const Owned holds = Owned::borrowed(settings->holds.get());
  if (!hold_tensor_of(arguments, lower, holds.get())) lower_ = lower;
  thread_state.in_model = true;
  used_before_ = std::exchange(thread_state.used_lower_parameter, false);
}

ModelCall::~ModelCall() {
  if (!is_outermost_) return;
  thread_state.in_model = false;
  thread_state.used_lower_parameter = used_before_;
}

PyObject* ModelCall::leave(PyObject* result) const {
  if (result == nullptr || lower_ == Kind::other || thread_state.used_lower_parameter) return result;
  const Kind kind = host::kind_of(result);
  if (kind != lower_ && kind != Kind::sequence && kind != Kind::other) return result;
  if (result == Py_None) return result;
  const Owned held(result);
  if (kind != lower_) return PyObject_CallOneArg(convert_.get(), result);
  tensor::CastResult made;
  Owned left = tensor::cast(result, kind, Kind::f32, made);
  model_results.tensors += 1;
  model_results.bytes += made.bytes;
  return left.release();
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

#include "engine/modules.hpp"

#include <algorithm>
#include <utility>

#include "engine/region.hpp"
#include "engine/state.hpp"
#include "errors.hpp"
#include "host/watching.hpp"

namespace habana_mp::engine {

namespace {

host::WatchedFunction watched;
bool any_module = false;
std::vector<PyObject*> modules;  // sorted

PyObject* call_impl_stub(PyObject* function, PyObject* const* values, std::size_t flagged_count, PyObject* keywords) {
  if (PyVectorcall_NARGS(flagged_count) == 0 || !begins_to_speak(values[0])) {
    return watched.call(function, values, flagged_count, keywords);
  }
  CastState wanted = current_state();
  wanted.region = rule_set_of_modules();
  enter_state(&watched, wanted);
  PyObject* result = watched.call(function, values, flagged_count, keywords);
  if (result != nullptr) {
    leave_region(&watched);
  } else {
    HeldError held;
    leave_region(&watched);
    held.restore();
  }
  return result;
}

}  // namespace

bool begins_to_speak(PyObject* module) noexcept {
  const ThreadState& state = thread_state;
  if (!watched.is_watched() || state.region != nullptr || state.silent) return false;
  return any_module || std::binary_search(modules.begin(), modules.end(), module);
}

bool may_watch_modules(PyObject* call_impl) {
  if (watched.is_watched()) return true;
  const bool is_as_expected = host::WatchedFunction::check(call_impl);
  if (is_as_expected) return rule_set_of_modules() != nullptr;
  if (PyErr_Occurred() == nullptr) {
    PyErr_SetString(PyExc_RuntimeError,
                    "habana_mp cannot tell where modules run: torch.nn.Module._call_impl is not a Python function that "
                    "is called as others are. Use `within=None`");
  }
  return false;
}

bool watch_modules(PyObject* call_impl, std::optional<std::vector<PyObject*>> among) {
  if (!may_watch_modules(call_impl)) return false;
  if (!watched.is_watched()) watched.watch(call_impl, &call_impl_stub);
  any_module = !among.has_value();
  modules = std::move(among).value_or(std::vector<PyObject*>());
  std::sort(modules.begin(), modules.end());
  return true;
}

void stop_watching_modules() noexcept {
  watched.stop();
  modules.clear();
}

}  // namespace habana_mp::engine

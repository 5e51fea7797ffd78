#include "engine/modules.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "engine/region.hpp"
#include "engine/state.hpp"
#include "errors.hpp"
#include "host/watching.hpp"
#include "watch/modules.hpp"

namespace habana_mp::engine {

namespace {

host::WatchedFunction watched;
bool any_module = false;
std::vector<PyObject*> modules;  // sorted
// The two reasons for a stub.
bool lists_wait_for_modules = false;
bool is_followed = false;

PyObject* call_impl_stub(PyObject*, PyObject* const* values, std::size_t flagged_count, PyObject* keywords) {
  if (PyVectorcall_NARGS(flagged_count) == 0 || !begins_to_apply_lists(values[0])) {
    return watched.call(values, flagged_count, keywords);
  }
  enter_lists(&watched, rule_set_of_modules());
  PyObject* result = watched.call(values, flagged_count, keywords);
  if (result != nullptr) {
    leave_region(&watched);
  } else {
    const HeldError held;
    leave_region(&watched);
  }
  return result;
}

// Like call_impl_stub. Also reports the running module to the watch.
PyObject* followed_call_impl_stub(PyObject* function, PyObject* const* values, std::size_t flagged_count,
                                  PyObject* keywords) {
  if (PyVectorcall_NARGS(flagged_count) == 0) return watched.call(values, flagged_count, keywords);
  std::unique_ptr<watch::ModuleCall> call = watch::module_begins(values[0]);
  if (!call) return nullptr;
  PyObject* result = call_impl_stub(function, values, flagged_count, keywords);
  watch::module_ends(std::move(call));
  return result;
}

void put_stub_in(PyObject* call_impl, PyObject* answering) {
  const Owned held = Owned::borrowed(call_impl);
  watched.stop();
  if (is_followed || lists_wait_for_modules) {
    watched.watch(call_impl, answering, is_followed ? from_c<followed_call_impl_stub> : from_c<call_impl_stub>);
  }
}

}  // namespace

bool lists_apply_in_any_module() noexcept { return any_module; }

bool begins_to_apply_lists(PyObject* module) noexcept {
  const ThreadState& state = thread_state;
  if (!lists_wait_for_modules || state.region != nullptr || state.lists_suspended) return false;
  return any_module || std::binary_search(modules.begin(), modules.end(), module);
}

bool may_watch_modules(PyObject* call_impl) {
  return can_follow_modules(call_impl) && rule_set_of_modules() != nullptr;
}

bool can_follow_modules(PyObject* call_impl) {
  host::MemoryMap memory;
  if (watched.is_watched() || host::WatchedFunction::check(call_impl, memory)) return true;
  PyErr_SetString(PyExc_RuntimeError,
                  "habana_mp cannot tell where modules run: torch.nn.Module._call_impl is not a Python function that "
                  "is called as others are. Use `within=None`, and the report of operations");
  return false;
}

bool follow_modules(PyObject* call_impl, PyObject* answering) {
  if (!can_follow_modules(call_impl)) return false;
  if (!std::exchange(is_followed, true)) put_stub_in(call_impl, answering);
  return true;
}

void stop_following_modules() noexcept {
  if (!std::exchange(is_followed, false)) return;
  if (lists_wait_for_modules) {
    watched.exchange_stub(from_c<call_impl_stub>);
  } else {
    watched.stop();
  }
}

bool watch_modules(PyObject* call_impl, PyObject* answering, std::optional<std::vector<PyObject*>> among) {
  if (!may_watch_modules(call_impl)) return false;
  any_module = !among.has_value();
  modules = std::move(among).value_or(std::vector<PyObject*>());
  std::sort(modules.begin(), modules.end());
  if (!lists_wait_for_modules) {
    lists_wait_for_modules = true;
    put_stub_in(call_impl, answering);
  }
  return true;
}

void stop_watching_modules() noexcept {
  lists_wait_for_modules = any_module = false;
  if (!is_followed) watched.stop();
  modules.clear();
}

}  // namespace habana_mp::engine

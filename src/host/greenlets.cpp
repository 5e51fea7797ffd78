#include "host/greenlets.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <exception>
#include <unordered_map>
#include <utility>

#include "errors.hpp"
#include "from_c.hpp"
#include "host/thread_end.hpp"
#include "owned.hpp"

namespace habana_mp::host {

namespace {

constexpr std::size_t most_parts = 8;
struct Parts {
  std::array<GreenletPart, most_parts> all{};
  std::size_t count = 0;
};
Parts& parts() {
  static Parts known;
  return known;
}

struct Waiting {
  std::array<std::unique_ptr<SavedState>, most_parts> parts;
  std::uint64_t since = 0;
};

struct OfThread {
  bool is_followed = false;
  bool is_switching = false;
  // The greenlet that owns the state, borrowed and identified by its address. It runs, so it is alive.
  PyObject* running = nullptr;
  // The saved states of suspended greenlets. A greenlet that has ended is removed.
  std::unordered_map<PyObject*, Waiting>* waiting = nullptr;
};
constinit thread_local OfThread here;

struct Functions {
  Owned settrace;
  Owned gettrace;
};
NeverDestroyed<Functions> functions;

std::uint64_t nanoseconds() noexcept {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

void forget_thread() {
  delete std::exchange(here.waiting, nullptr);
  here = {};
}

bool has_ended(PyObject* greenlet) {
  const Owned dead(PyObject_GetAttrString(greenlet, "dead"));
  if (!dead) clear_error();  // a C attribute: no Python code runs
  return dead.get() == Py_True;
}

// Saves the state of `from` and restores that of `to`.
void exchange(PyObject* from, PyObject* to) {
  Waiting taken;
  bool has_any = false;
  for (std::size_t i = 0; i < parts().count; ++i) {
    taken.parts[i] = parts().all[i].take();
    has_any = has_any || taken.parts[i] != nullptr;
  }
  here.running = to;
  if (has_any && !has_ended(from)) {
    if (here.waiting == nullptr) here.waiting = new std::unordered_map<PyObject*, Waiting>;
    taken.since = nanoseconds();
    (*here.waiting)[from] = std::move(taken);
  }
  if (here.waiting == nullptr) return;
  const auto found = here.waiting->find(to);
  if (found == here.waiting->end()) return;
  Waiting back = std::move(found->second);
  here.waiting->erase(found);
  const std::uint64_t aside = nanoseconds() - back.since;
  for (std::size_t i = 0; i < parts().count; ++i) {
    if (back.parts[i]) parts().all[i].put_back(*back.parts[i], aside);
  }
}

PyObject* switched(PyObject* previous, PyObject* const* values, Py_ssize_t count);
PyMethodDef definition{"habana_mp_switched", from_c<switched>.as_method(), METH_FASTCALL, nullptr};

bool is_ours(PyObject* function) {
  return PyCFunction_CheckExact(function) && reinterpret_cast<PyCFunctionObject*>(function)->m_ml == &definition;
}

// Removes the trace function from this thread if greenlet still calls it and no suspended greenlet has a saved state.
void leave_this_thread() {
  if (here.waiting != nullptr && !here.waiting->empty()) return;
  if (!functions->gettrace) return;
  const Owned current(PyObject_CallNoArgs(functions->gettrace.get()));
  if (!current || !is_ours(current.get())) return;
  here.is_followed = false;
  const Owned done(PyObject_CallOneArg(functions->settrace.get(), PyCFunction_GET_SELF(current.get())));
}

// The trace function. greenlet calls it after each switch, in the greenlet that now runs, with "switch" or "throw" and
// a pair of greenlets. `previous` is the former trace function or None.
PyObject* switched(PyObject* previous, PyObject* const* values, Py_ssize_t count) {
  PyObject* const pair = count == 2 ? values[1] : nullptr;
  if (here.is_switching) Py_RETURN_NONE;  // `previous` has called this function
  here.is_switching = true;
  try {
    if (pair != nullptr && PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) == 2 &&
        PyTuple_GET_ITEM(pair, 1) != here.running) {
      exchange(PyTuple_GET_ITEM(pair, 0), PyTuple_GET_ITEM(pair, 1));
    }
    if (!detail::greenlets_are_followed) leave_this_thread();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_MemoryError, error.what());
  }
  Owned result = previous == Py_None || PyErr_Occurred() != nullptr
                     ? nullptr
                     : Owned(PyObject_Vectorcall(previous, values, static_cast<std::size_t>(count), nullptr));
  here.is_switching = false;
  if (PyErr_Occurred() != nullptr) {
    here.is_followed = false;  // greenlet removes a trace function that raises
    return nullptr;
  }
  Py_RETURN_NONE;
}

bool put_in(const Functions& given) {
  const Owned previous(PyObject_CallNoArgs(given.gettrace.get()));
  if (!previous) return false;
  if (is_ours(previous.get())) return true;
  const Owned ours(PyCFunction_New(&definition, previous.get()));
  return ours && static_cast<bool>(Owned(PyObject_CallOneArg(given.settrace.get(), ours.get())));
}

}  // namespace

bool detail::greenlets_are_followed = false;

void detail::follow_in_this_thread() noexcept {
  if (here.is_followed) return;
  const HeldError held;
  here.is_followed = put_in(*functions);
  if (here.is_followed) {
    at_thread_end("habana_mp.greenlets", &forget_thread);
  } else {
    print_error(functions->settrace.get());
  }
}

bool add_greenlet_part(const GreenletPart& part) {
  parts().all[parts().count++] = part;
  return true;
}

bool follow_greenlets(PyObject* settrace, PyObject* gettrace) {
  const Functions former = std::exchange(*functions, {Owned::borrowed(settrace), Owned::borrowed(gettrace)});
  if (!here.is_followed && !put_in(*functions)) return false;
  here.is_followed = detail::greenlets_are_followed = true;
  at_thread_end("habana_mp.greenlets", &forget_thread);
  return true;
}

void leave_greenlets() noexcept {
  if (!std::exchange(detail::greenlets_are_followed, false)) return;
  const HeldError held;
  leave_this_thread();
  clear_error();
}

}  // namespace habana_mp::host

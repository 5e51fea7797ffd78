#include "engine/call.hpp"

#include <algorithm>

#include "engine/attempt.hpp"
#include "engine/lowered.hpp"
#include "engine/measured.hpp"
#include "engine/originals.hpp"
#include "engine/region.hpp"
#include "errors.hpp"
#include "frames.hpp"
#include "log/log.hpp"
#include "tensor/casts_inside.hpp"
#include "weights/escapes.hpp"

namespace habana_mp::engine {

using tensor::is_floating;
using tensor::Kind;

namespace {

// Is this call decided on elsewhere? Torch's own Python makes some for another operation, which was decided as a whole:
// below the dispatcher, and where a tracer asks what an operation consists of. And what is intercepted calls torch
// again.
bool is_decided_elsewhere(const Arguments& arguments) {
  if (is_below_dispatcher() || tensor::function_mode_is_on()) return true;
  if (!tensor::holds_subclass(arguments.values, arguments.count())) return false;
  return tensor::has_torch_function(arguments.values, arguments.count()) || caller_is_inside_of_an_operation();
}

// Is there a tensor that the test, of the tensor and its kind, says yes to? Those in lists and tuples are looked at
// too.
template <typename Test>
bool is_any_tensor(PyObject* const* values, Py_ssize_t count, const Test& test, int depth = 0) {
  for (Py_ssize_t i = 0; i < count; ++i) {
    const Kind kind = tensor::kind_of(values[i]);
    if (kind == Kind::sequence && depth < deepest_sequence) {
      // Of a copy: a subclass is asked in Python for its dtype and its device, and may change the list.
      PyObject* const items = PyTuple_Check(values[i]) ? Py_NewRef(values[i]) : PyList_AsTuple(values[i]);
      if (items == nullptr) {
        drop_error();
        continue;
      }
      const bool found = is_any_tensor(PySequence_Fast_ITEMS(items), PyTuple_GET_SIZE(items), test, depth + 1);
      Py_DECREF(items);
      if (found) return true;
    } else if (test(values[i], kind)) {
      return true;
    }
  }
  return false;
}

// Is one of the floating tensors on a device of this kind?
bool holds_tensor_on(RuleSet::Device device, const Arguments& arguments) {
  return is_any_tensor(arguments.values, arguments.count(), [=](PyObject* value, Kind kind) {
    if (!is_floating(kind)) return false;
    // A plain tensor on the CPU is told at a glance.
    const bool off_cpu = !tensor::can_be_cast_inside(value) && tensor::is_off_cpu(value);
    return off_cpu == (device == RuleSet::Device::accelerator);
  });
}

bool is_for_another_device(const RuleSet* region, const Arguments& arguments) {
  return region != nullptr && region->device != RuleSet::Device::any && !holds_tensor_on(region->device, arguments);
}

// Is nothing cast for this call, whatever the lists say?
bool is_left_alone(const Arguments& arguments) {
  return is_decided_elsewhere(arguments) || (may_be_a_place(thread_state) && why_not(thread_state)) ||
         is_for_another_device(thread_state.region, arguments);
}

// Is the stride of a convolution, its fourth argument, 1?
bool has_unit_stride(const Arguments& arguments) {
  static PyObject* const name = PyUnicode_InternFromString("stride");
  PyObject* stride = find_argument(arguments, 3, name);
  const auto is_one = [](PyObject* number) { return PyLong_CheckExact(number) && PyLong_AsLong(number) == 1; };
  if (stride == nullptr || is_one(stride)) return true;
  if (!PyTuple_Check(stride)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(stride); ++i) {
    if (!is_one(PyTuple_GET_ITEM(stride, i))) return false;
  }
  return true;
}

// What a function of ours answers for the arguments of a call.
bool answers_true(PyObject* function, const Arguments& arguments) {
  PyObject* answer = PyObject_Vectorcall(function, arguments.values, static_cast<std::size_t>(arguments.positional),
                                         arguments.keywords);
  const bool is_true = answer == Py_True;
  Py_XDECREF(answer);
  // Arguments that do not fit are torch's to refuse.
  if (answer == nullptr && PyErr_ExceptionMatches(PyExc_Exception) != 0) PyErr_Clear();
  return is_true;
}

// Would this convolution be wrong in bfloat16, or its gradient?
bool would_be_wrong(const Rule& rule, const Arguments& arguments) {
  return !(rule.wrong_if_strided && has_unit_stride(arguments)) && answers_true(rule.is_wrong, arguments);
}

// Would a transform of torch.func, or forward-mode AD, meet two precisions? The kernels take a float32 weight beside a
// lower input; the formulas that gradients are worked out by in there do not.
bool mixes_in_a_transform(const Rule& rule, const Arguments& arguments, const Reading& reading, Kind to) {
  return (rule.off_cpu_positions | rule.raised_positions) != 0 && tensor::is_lower(to) && tensor::is_transformed() &&
         tensor::grad_is_enabled() && one_stays_in_float32(rule, arguments, reading);
}

// May a call that failed be repeated with other casts? A user's own function may not: what it did, it did.
bool may_repeat(const Target& target, const Rule& rule) {
  return target.shape != Target::Shape::python && rule.may_repeat;
}

// As the module `opcode` calls it; -1 where it has no such one.
long number_of_opcode(const char* name) {
  PyObject* opcodes = PyImport_ImportModule("opcode");
  PyObject* map = opcodes == nullptr ? nullptr : PyObject_GetAttrString(opcodes, "opmap");
  PyObject* number = map == nullptr ? nullptr : PyMapping_GetItemString(map, name);
  const long found = number == nullptr ? -1 : PyLong_AsLong(number);
  Py_XDECREF(number);
  Py_XDECREF(map);
  Py_XDECREF(opcodes);
  PyErr_Clear();
  return found;
}

// Does torch.jit.trace record the call that has just failed? It crashes at the next operation after such a one. (It
// records no more by now, so it cannot be asked.)
bool was_recorded_by_jit() {
  HeldError held;
  bool found = false;
  for (FrameWalk walk; walk && !found; walk.outwards()) {
    PyObject* name = walk.module_name();
    found = name != nullptr && PyUnicode_CompareWithASCIIString(name, "torch.jit._trace") == 0;
    Py_XDECREF(name);
  }
  held.restore();
  return found;
}

// Has somebody's own code inside the call, a hook of saved tensors or a mode, raised the exception by a `raise`, and
// not to tell of one of torch's? NotImplementedError says that there is no kernel, whoever says it.
bool was_raised_by_others() {
  if (PyErr_ExceptionMatches(PyExc_NotImplementedError) != 0) return false;
  HeldError held;
  static PyObject* const own = Py_BuildValue("(ss)", "torch.", "habana_mp.");
  static const long raise = number_of_opcode("RAISE_VARARGS");
  auto* entry = reinterpret_cast<PyTracebackObject*>(held.traceback());
  bool by_others = false;
  if (entry != nullptr && !held.has_context()) {
    while (entry->tb_next != nullptr) entry = entry->tb_next;
    const FrameWalk innermost(entry->tb_frame);
    PyObject* module = innermost.module_name();
    const bool is_torchs = module != nullptr &&
                           (begins_with_one_of(module, own) || PyUnicode_CompareWithASCIIString(module, "torch") == 0);
    if (!is_torchs) {
      PyObject* bytes = PyObject_GetAttrString(innermost.code(), "co_code");
      by_others = bytes != nullptr && entry->tb_lasti >= 0 && entry->tb_lasti < PyBytes_GET_SIZE(bytes) &&
                  static_cast<unsigned char>(PyBytes_AS_STRING(bytes)[entry->tb_lasti]) == raise;
      Py_XDECREF(bytes);
    }
    Py_XDECREF(module);
  }
  PyErr_Clear();
  held.restore();
  return by_others;
}

// May a call that failed be tried again without our casts? Only after what torch raises itself: an exception of any
// other class comes from Python code inside the call (a hook that stops a recomputation, say) and is not ours to catch.
bool may_retry() {
  PyObject* type = PyErr_Occurred();
  const bool is_torchs = type == PyExc_RuntimeError || type == PyExc_NotImplementedError || type == PyExc_TypeError ||
                         type == PyExc_ValueError || type == PyExc_IndexError;
  return is_torchs && !was_recorded_by_jit() && !was_raised_by_others();
}

void count(Target& target, Precision precision, const Tally& tally) {
  Count& counter = target.counts[static_cast<std::size_t>(precision)];
  ++counter.calls;
  counter.casts += tally.casts - tally.kept;
  counter.bytes += tally.made.bytes;
}

void report(Target& target, Decision decision, const Tally& tally) {
  count(target, decision.precision, tally);
  if (log::is_active()) log::operation(target.representation, target.operation, decision, tally.casts - tally.kept);
}

// A cast itself failed (a layout without such a copy, a subclass that refuses): the call is then made as it was
// written.
bool may_do_without_cast() { return PyErr_ExceptionMatches(PyExc_Exception) != 0 && !was_recorded_by_jit(); }

// One more try after a call that failed, with every input in one precision. As attempt_with_casts.
PyObject* attempt_all_in(Target& target, const Rule& rule, const Arguments& arguments, const Reading& reading, Kind to,
                         Attempt& attempt) {
  CastArguments cast(arguments);
  attempt.made = cast.make(rule, reading, to, attempt.tally);
  return attempt.made ? call_original(target, cast.arguments()) : nullptr;
}

// The lower precision of what a call updates beside its first input: statistics of a model that is lower as a whole.
Kind lower_state_of(const Rule& rule, const Arguments& arguments) {
  for (Py_ssize_t i = 0; i < arguments.count(); ++i) {
    const bool is_kept =
        i < arguments.positional
            ? !rule.may_cast(i)
            : holds(rule.kept_keywords, PyTuple_GET_ITEM(arguments.keywords, i - arguments.positional));
    const Kind kind = is_kept ? tensor::kind_of(arguments.values[i]) : Kind::other;
    if (tensor::is_lower(kind)) return kind;
  }
  return Kind::other;
}

// A call failed: can it be made in the precision of what it updates?
PyObject* call_in_precision_of_state(Target& target, const Rule& rule, const Arguments& arguments,
                                     const Reading& reading) {
  const Kind to = lower_state_of(rule, arguments);
  if (!must_cast({{}, to}, reading) || !may_retry()) return nullptr;
  HeldError held;
  Attempt attempt;
  PyObject* result = attempt_all_in(target, rule, arguments, reading, to, attempt);
  if (result != nullptr) {
    report(target, {precision_of(to), Reason::in_place}, attempt.tally);
  } else if (may_retry()) {
    PyErr_Clear();
    held.restore();
  }
  return result;
}

// A call failed with our casts: what would plain torch have done? Everything lower goes to float32, and if that works
// the operation has no kernel for the lower precision here (rule 8). Else the call is made as it was written; whatever
// comes of that is the caller's. An in-place target stays what it is, so there only the latter is tried. `as_written`
// tells that the call that failed was that already.
PyObject* call_without_lowering(Target& target, const Rule& rule, const Arguments& arguments, const Reading& reading,
                                bool as_written) {
  HeldError held;
  if (rule.action != Rule::Action::in_place) {
    Attempt widened;
    PyObject* result = attempt_all_in(target, rule, arguments, reading, Kind::f32, widened);
    if (result != nullptr) {
      report(target, {Precision::fp32, Reason::no_kernel}, widened.tally);
      return result;
    }
    const bool may_go_on =
        widened.made ? widened.tally.casts != 0 && may_repeat(target, rule) && may_retry() : may_do_without_cast();
    if (!may_go_on) return nullptr;
    PyErr_Clear();
  }
  if (as_written) {
    held.restore();
    return nullptr;
  }
  PyObject* result = call_original(target, arguments);
  if (result == nullptr) return call_in_precision_of_state(target, rule, arguments, reading);
  report(target, {Precision::unchanged, Reason::no_kernel}, {});
  return result;
}

PyObject* refuse(const Target& target) {
  PyErr_Format(PyExc_RuntimeError,
               "%s is refused in a float16 region: its gradient may not fit into float16, and a cast of its input to "
               "float32 would not help, since the gradient goes back through that cast. Leave out the sigmoid before "
               "it and use torch.nn.functional.binary_cross_entropy_with_logits (torch.nn.BCEWithLogitsLoss for "
               "torch.nn.BCELoss), which is safe, or compute it in float32 under hmp.disable_casts()",
               target.operation.c_str());
  return nullptr;
}

PyObject* answer_covered(Target& target, const Rule& rule, const Arguments& arguments);

// A result in float32, rounded, or several; takes it.
PyObject* rounded(PyObject* result, Kind to, Tally& tally) {
  if (result == nullptr) return result;
  if (PyTuple_CheckExact(result)) {
    PyObject* all = PyTuple_New(PyTuple_GET_SIZE(result));
    for (Py_ssize_t i = 0; all != nullptr && i < PyTuple_GET_SIZE(result); ++i) {
      PyObject* made = rounded(Py_NewRef(PyTuple_GET_ITEM(result, i)), to, tally);
      if (made != nullptr) {
        PyTuple_SET_ITEM(all, i, made);
      } else {
        Py_CLEAR(all);
      }
    }
    Py_DECREF(result);
    return all;
  }
  if (tensor::kind_of(result) != Kind::f32) return result;
  PyObject* made = tensor::cast(result, Kind::f32, to, tally.made);
  Py_DECREF(result);
  return made;
}

// The call as the plan wants it: the part behind the fast path.
PyObject* answer_with_casts(Target& target, const Rule& rule, const Arguments& arguments, const Reading& reading,
                            Plan plan) {
  // Nobody intercepts a user's own function, and where it is called from is his choice.
  if (target.shape != Target::Shape::python && is_decided_elsewhere(arguments)) [[unlikely]] {
    return call_undecided(target, arguments);
  }
  if (may_be_a_place(thread_state)) [[unlikely]] {
    if (const auto reason = why_not(thread_state)) {
      report(target, {Precision::unchanged, *reason}, {});
      return call_original(target, arguments);
    }
    // What is lower already still meets float32 there, by rules 2 to 4.
    if (plan.decision.reason == Reason::list && tensor::is_lower(plan.to) && caller_is_exact()) {
      const Rule& silent = *target.unlisted;
      if (silent.action != Rule::Action::none) return answer_covered(target, silent, arguments);
      report(target, {Precision::unchanged, Reason::library}, {});
      return call_original(target, arguments);
    }
  }
  const RuleSet* region = thread_state.region;
  if (is_for_another_device(region, arguments)) {
    report(target, {Precision::unchanged, Reason::other_device}, {});
    return call_original(target, arguments);
  }
  if (rule.views_one && holds_one_tensor(arguments, reading)) [[unlikely]] {
    report(target, {Precision::unchanged, Reason::view}, {});
    return call_original(target, arguments);
  }
  if (rule.makes_product != nullptr && !answers_true(rule.makes_product, arguments)) [[unlikely]] {
    if (PyErr_Occurred() != nullptr) return nullptr;
    const Kind to = widest(reading);
    plan = {{precision_of(to), Reason::no_product}, to};
    if (!must_cast(plan, reading)) {
      report(target, plan.decision, {});
      return call_original(target, arguments);
    }
  }
  Attempt attempt;
  if (rule.is_fused != nullptr && tensor::is_lower(plan.to)) {
    attempt.is_fused = answers_true(rule.is_fused, arguments);
    if (PyErr_Occurred() != nullptr) return nullptr;
  }
  attempt.is_inside = rule.products_inside && tensor::is_lower(plan.to) && !attempt.is_fused;
  if (attempt.is_inside && !may_lower_products(arguments, reading, plan.to)) {
    return answer_covered(target, *target.unlisted, arguments);
  }
  if (rule.is_wrong != nullptr && plan.to == Kind::bf16) {
    if (would_be_wrong(rule, arguments)) [[unlikely]] {
      return call_without_lowering(target, rule, arguments, reading, false);
    }
    if (PyErr_Occurred() != nullptr) return nullptr;
  }
  Kind to = plan.to;
  if (rule.sums != nullptr && tensor::is_lower(plan.to)) {
    if (answers_true(rule.sums, arguments)) {
      to = Kind::f32;
      plan.decision = {Precision::fp32, Reason::sums};
    } else if (PyErr_Occurred() != nullptr) {
      return nullptr;
    } else if (!must_cast(plan, reading)) {
      report(target, plan.decision, {});
      return call_original(target, arguments);
    }
  }
  if (skips_slower()) [[unlikely]] {
    const bool skip = is_slower_lowered(target, rule, arguments, reading, plan.to);
    if (PyErr_Occurred() != nullptr) return nullptr;
    if (skip) {
      report(target, {Precision::unchanged, Reason::slower}, {});
      return call_original(target, arguments);
    }
  }
  if (rule.is_product && tensor::is_lower(plan.to) && holds_sparse_tensor(arguments, reading)) [[unlikely]] {
    if (PyErr_Occurred() != nullptr) return nullptr;
    return call_without_lowering(target, rule, arguments, reading, false);
  }
  if (mixes_in_a_transform(rule, arguments, reading, plan.to)) [[unlikely]] {
    return call_without_lowering(target, rule, arguments, reading, false);
  }
  PyObject* result = attempt_with_casts(target, rule, arguments, reading, to, attempt);
  if (to != plan.to) result = rounded(result, plan.to, attempt.tally);
  if (result == nullptr) {
    if (attempt.interrupted) return nullptr;
    if (attempt.made ? !may_repeat(target, rule) || !may_retry() : !may_do_without_cast()) return nullptr;
    const bool as_written = attempt.made && attempt.tally.casts == 0 && !attempt.scalar_changed;
    return call_without_lowering(target, rule, arguments, reading, as_written);
  }
  if (attempt.scalar_changed) plan.decision.reason = Reason::scalar;
  report(target, plan.decision, attempt.tally);
  if (plan.to != Kind::f32 && attempt.tally.casts != 0) {
    if (!attempt.tally.made.recorded) {
      remember_lowered(result);
    } else if (region != nullptr && region->after_recorded_cast != nullptr) {
      PyObject* done = PyObject_CallOneArg(region->after_recorded_cast, result);
      if (done == nullptr) Py_CLEAR(result);
      Py_XDECREF(done);
    }
  }
  return result;
}

// Apart from answer, whose early way out then needs no room for a reading.
[[gnu::noinline]] PyObject* answer_covered(Target& target, const Rule& rule, const Arguments& arguments) {
  Reading reading(arguments.count());
  read(rule, arguments, reading);
  const Plan plan = decide(rule, arguments, reading);
  if (must_cast(plan, reading)) return answer_with_casts(target, rule, arguments, reading, plan);
  if (rule.looks_closer() && tensor::is_lower(plan.to) &&
      (rule.sums != nullptr || holds_sparse_tensor(arguments, reading))) [[unlikely]] {
    return answer_with_casts(target, rule, arguments, reading, plan);
  }
  if (rule.saturate && plan.to != Kind::other && plan.to != Kind::f32 && has_number_beyond(plan.to, arguments)) {
    return answer_with_casts(target, rule, arguments, reading, plan);
  }
  const bool is_refused = rule.action == Rule::Action::refused && plan.decision.reason == rule.reason;
  if (is_refused && !is_for_another_device(thread_state.region, arguments)) {
    return refuse(target);
  }
  const bool is_seen = target.twin == nullptr || tensor::function_mode_is_on();
  PyObject* result = is_seen ? call_original(target, arguments) : call_unseen(target, arguments);
  if (result != nullptr) [[likely]] {
    // One of another release may not count up the version of what it writes into.
    if (plan.decision.reason == Reason::explicit_out) weights::tensor_escapes(result, false);
    report(target, plan.decision, {});
    return result;
  }
  // What is lower already may have no kernel either (rule 8).
  if (!tensor::is_lower(plan.to) || !may_repeat(target, rule) || !may_retry()) return nullptr;
  HeldError held;
  const bool is_place = is_left_alone(arguments);
  held.restore();
  return is_place ? nullptr : call_without_lowering(target, rule, arguments, reading, true);
}

// In a region of torch.autocast(enabled=False) nothing is cast. But what a call is given there may have been lowered
// outside; whoever protects himself so wants float32 for it, where torch takes no two precisions (rule 10).
[[gnu::noinline]] PyObject* answer_protected(Target& target, const Arguments& arguments) {
  const Rule& rule = *target.unlisted;
  if (rule.action == Rule::Action::none || !may_repeat(target, rule)) return call_original(target, arguments);
  const auto plan_for = [&](Reading& reading) {
    read(rule, arguments, reading);
    Plan plan = decide(rule, arguments, reading);
    const bool holds_lower = (reading.seen & (tensor::bit(Kind::bf16) | tensor::bit(Kind::f16))) != 0;
    plan.to = holds_lower && plan.to != Kind::other ? Kind::f32 : Kind::other;
    plan.decision.precision = Precision::fp32;
    return plan;
  };
  // A tracer may take two precisions where the kernels of what it traces do not.
  if (rule.is_product) {
    Reading reading(arguments.count());
    const Plan plan = plan_for(reading);
    if (plan.to == Kind::f32 && (reading.seen & tensor::bit(Kind::f32)) != 0) {
      return answer_with_casts(target, rule, arguments, reading, plan);
    }
  }
  PyObject* result = call_original(target, arguments);
  if (result != nullptr || !may_retry()) return result;
  HeldError held;
  Reading reading(arguments.count());
  const bool may_be_lowered = plan_for(reading).to == Kind::f32 && !is_left_alone(arguments);
  held.restore();
  return may_be_lowered ? call_without_lowering(target, rule, arguments, reading, true) : nullptr;
}

// What the lists say of a target: the innermost region's, or convert's. A user's own function has its own rule.
const Rule& rule_of_lists(const Target& target) {
  const RuleSet* region = thread_state.region;
  if (region == nullptr || target.index == no_index) [[likely]]
    return *target.listed;
  return *region->rules[target.index];
}

// The same for a call that is given a lower tensor.
const Rule& rule_beside_lower(const Target& target) {
  const Rule& rule = rule_of_lists(target);
  return rule.of_lower == nullptr ? rule : *rule.of_lower;
}

bool holds_lower_tensor(const Arguments& arguments) {
  return is_any_tensor(arguments.values, arguments.count(),
                       [](PyObject*, Kind kind) { return tensor::is_lower(kind); });
}

PyObject* answer_by_lists(Target& target, const Arguments& arguments) {
  const ThreadState& state = thread_state;
  if (casts_are_disabled()) {
    const bool is_protected = state.disabled_by_region && (policy_is_installed || state.region != nullptr);
    return is_protected ? answer_protected(target, arguments) : call_original(target, arguments);
  }
  const bool lists_speak = !state.silent || target.shape == Target::Shape::python ||
                           (state.silent_until_recording && tensor::grad_is_enabled());
  // Read once: another policy may be installed while the arguments are looked at.
  const Rule* speaking = lists_speak ? &rule_of_lists(target) : target.unlisted;
  if (speaking->action == Rule::Action::none) {
    if (speaking->of_lower == nullptr || !holds_lower_tensor(arguments)) {
      // A function of torch's that other lists cover: here the lists speak of what it calls.
      return target.shape == Target::Shape::python ? call_python(target, arguments) : call_original(target, arguments);
    }
    speaking = speaking->of_lower;
  }
  const Rule& rule = *speaking;
  if (rule.sparse_keyword != nullptr && has_sparse_gradient(rule, arguments)) [[unlikely]] {
    const Rule& silent = *target.unlisted;
    if (silent.action == Rule::Action::none) return call_original(target, arguments);
    return answer_covered(target, silent, arguments);
  }
  return answer_covered(target, rule, arguments);
}

}  // namespace

PyObject* answer(Target& target, const Arguments& arguments) {
  PyObject* result = answer_by_lists(target, arguments);
  if (target.counts_no_version && result != nullptr) [[unlikely]]
    weights::tensor_escapes(result, false);
  return result;
}

int answer_assignment(Target& target, PyObject* tensor, PyObject* key, PyObject* value, objobjargproc original) {
  const Rule& rule = rule_beside_lower(target);
  if (value == nullptr || casts_are_disabled() || rule.action == Rule::Action::none) {
    return original(tensor, key, value);
  }
  const Kind to = tensor::kind_of(tensor);
  if (!is_floating(to)) return original(tensor, key, value);
  const bool number = is_number(value);
  const Kind from = number ? Kind::other : tensor::kind_of(value);
  if (!number && (!is_floating(from) || from == to)) return original(tensor, key, value);
  Tally tally;
  PyObject* made = nullptr;
  if (number) {
    made = to == Kind::f32 ? nullptr : saturated(value, to);
    if (made == nullptr) return original(tensor, key, value);
  } else {
    if (is_decided_elsewhere({&tensor, 1, nullptr})) return original(tensor, key, value);
    if (const auto reason = why_not(thread_state)) {
      report(target, {Precision::unchanged, *reason}, {});
      return original(tensor, key, value);
    }
    if (is_for_another_device(thread_state.region, {&tensor, 1, nullptr})) return original(tensor, key, value);
    made = tensor::cast(value, from, to, tally.made);
    if (made == nullptr) {
      if (!may_do_without_cast()) return -1;
      PyErr_Clear();
      return original(tensor, key, value);
    }
    ++tally.casts;
  }
  const int result = original(tensor, key, made);
  Py_DECREF(made);
  if (result == 0) report(target, {precision_of(to), number ? Reason::scalar : rule.reason}, tally);
  return result;
}

// Can this key pick one value several times? A number, a slice and the like cannot; lists, tensors and the rest may.
static bool may_pick_twice(PyObject* key) {
  if (PyTuple_Check(key)) {
    return std::any_of(PySequence_Fast_ITEMS(key), PySequence_Fast_ITEMS(key) + PyTuple_GET_SIZE(key),
                       [](PyObject* part) { return PyTuple_Check(part) || may_pick_twice(part); });
  }
  return !PyLong_Check(key) && !PySlice_Check(key) && key != Py_None && key != Py_Ellipsis;
}

PyObject* answer_subscript(Target& target, PyObject* tensor, PyObject* key, binaryfunc original) {
  if (!may_pick_twice(key) || casts_are_disabled()) return original(tensor, key);
  const Kind kind = tensor::kind_of(tensor);
  const Rule& rule = rule_beside_lower(target);
  const bool is_recorded = tensor::is_lower(kind) && tensor::grad_is_enabled() && tensor::requires_grad(tensor);
  if (!is_recorded || rule.sums == nullptr) return original(tensor, key);
  PyObject* const values[] = {tensor, key};
  const bool is_left = is_left_alone({values, 1, nullptr});
  if (is_left || !answers_true(rule.sums, {values, 2, nullptr})) {
    return PyErr_Occurred() != nullptr ? nullptr : original(tensor, key);
  }
  Tally tally;
  PyObject* made = tensor::cast(tensor, kind, Kind::f32, tally.made);
  if (made == nullptr) {
    if (!may_do_without_cast()) return nullptr;
    PyErr_Clear();
    return original(tensor, key);
  }
  ++tally.casts;
  PyObject* picked = original(made, key);
  Py_DECREF(made);
  PyObject* result = rounded(picked, kind, tally);
  if (result != nullptr) report(target, {Precision::fp32, Reason::sums}, tally);
  return result;
}

}  // namespace habana_mp::engine

#include "engine/call.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "engine/measured.hpp"
#include "engine/region.hpp"
#include "errors.hpp"
#include "frames.hpp"
#include "log/log.hpp"
#include "stopwatch.hpp"
#include "tensor/buffers.hpp"
#include "tensor/cast.hpp"
#include "tensor/casts_inside.hpp"
#include "tensor/image_order.hpp"
#include "weights/cache.hpp"
#include "weights/escapes.hpp"
#include "weights/packed.hpp"

namespace habana_mp::engine {

using tensor::bit;
using tensor::floating;
using tensor::is_floating;
using tensor::Kind;
using tensor::Kinds;

namespace {

// Most calls have no more arguments than this; longer ones use the heap.
constexpr Py_ssize_t inline_arguments = 24;
// How deep lists of tensors are followed: LSTM takes a tuple of tensors, some operations a list of tuples.
constexpr int deepest_sequence = 2;

template <typename T>
class SmallBuffer {
 public:
  explicit SmallBuffer(Py_ssize_t count) : data_(count <= inline_arguments ? inline_ : new T[count]) {}
  ~SmallBuffer() {
    if (data_ != inline_) delete[] data_;
  }
  SmallBuffer(const SmallBuffer&) = delete;
  SmallBuffer& operator=(const SmallBuffer&) = delete;
  T& operator[](Py_ssize_t i) { return data_[i]; }
  const T& operator[](Py_ssize_t i) const { return data_[i]; }
  T* data() { return data_; }

 private:
  T inline_[inline_arguments];
  T* data_;
};

// The last results of calls whose inputs were lowered, held weakly. What autograd records is passed over: it would cost
// every call of a training step, and the graph tells.
struct Lowered {
  static constexpr std::size_t size = 8;
  std::array<PyObject*, size> references{};
  std::size_t next = 0;
  void remember(PyObject* result) {
    if (!tensor::is_plain_tensor(result) || tensor::requires_grad(result)) return;
    PyObject*& place = references[next++ % size];
    PyObject* reference = PyWeakref_NewRef(result, nullptr);
    if (reference == nullptr) PyErr_Clear();
    Py_XDECREF(std::exchange(place, reference));
  }
  void forget(PyObject* result) {
    for (PyObject*& reference : references) {
      if (reference != nullptr && tensor::is_reference_to(reference, result)) Py_CLEAR(reference);
    }
  }
} lowered;

Precision precision_of(Kind kind) {
  switch (kind) {
    case Kind::bf16:
      return Precision::bf16;
    case Kind::f16:
      return Precision::fp16;
    default:
      return Precision::fp32;
  }
}

struct Names {
  PyObject* out = PyUnicode_InternFromString("out");
  PyObject* dtype = PyUnicode_InternFromString("dtype");
  PyObject* input = PyUnicode_InternFromString("input");  // what torch calls nearly every operation's first input
  PyObject* query = PyUnicode_InternFromString("query");
};
const Names& names() {
  static const Names interned;
  return interned;
}

// A call may hand over keywords that are no strings; what is wrong with them is for torch to say.
bool same_name(PyObject* a, PyObject* b) {
  return a == b || (PyUnicode_Check(a) && PyUnicode_Check(b) && PyUnicode_Compare(a, b) == 0);
}

// `keywords` is a tuple of names, or null for none.
bool holds(PyObject* keywords, PyObject* keyword) {
  if (keywords == nullptr) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keywords); ++i) {
    if (same_name(PyTuple_GET_ITEM(keywords, i), keyword)) return true;
  }
  return false;
}

// What the arguments are: one kind for each, and the set of all.
struct Reading {
  explicit Reading(Py_ssize_t count) : kinds(count) {}
  SmallBuffer<Kind> kinds;
  Kinds seen = 0;
  Kind first = Kind::other;  // the first floating tensor's
  bool explicit_out = false;
  bool explicit_dtype = false;

  void note(Kind kind) {
    seen |= bit(kind);
    if (first == Kind::other && is_floating(kind)) first = kind;
  }
};

// May this sequence be exchanged for a plain list or tuple? A user's own function may want its class (a named tuple's).
bool may_exchange(const Rule& rule, PyObject* sequence) {
  return rule.reason != Reason::op_wrap || PyList_CheckExact(sequence) || PyTuple_CheckExact(sequence);
}

// The kinds of the tensors in a list or tuple. Lists of numbers, by far the most, are seen through at their first item.
Kinds read_sequence(const Rule& rule, PyObject* sequence, Reading& reading, int depth) {
  Kinds seen = 0;
  if (!may_exchange(rule, sequence)) return seen;
  const bool is_tuple = PyTuple_Check(sequence);
  const auto size = [&] { return is_tuple ? PyTuple_GET_SIZE(sequence) : PyList_GET_SIZE(sequence); };
  // Reading a subclass's dtype can run Python code, so the size is asked again each time and the item is held.
  for (Py_ssize_t i = 0; i < size(); ++i) {
    PyObject* item = is_tuple ? PyTuple_GET_ITEM(sequence, i) : PyList_GET_ITEM(sequence, i);
    if (PyLong_CheckExact(item) || PyFloat_CheckExact(item)) return seen;
    Py_INCREF(item);
    const Kind kind = tensor::kind_of(item);
    if (kind == Kind::sequence) {
      if (depth < deepest_sequence) seen |= read_sequence(rule, item, reading, depth + 1);
    } else if (kind != Kind::dtype) {
      seen |= bit(kind);
      reading.note(kind);
    }
    Py_DECREF(item);
  }
  return seen;
}

bool has_sparse_gradient(const Rule& rule, const Arguments& arguments) {
  const Py_ssize_t position = rule.sparse_position;
  if (position < arguments.positional) return arguments.values[position] == Py_True;
  for (Py_ssize_t i = 0; i < arguments.keyword_count(); ++i) {
    if (holds(rule.sparse_keyword, PyTuple_GET_ITEM(arguments.keywords, i))) {
      return arguments.values[arguments.positional + i] == Py_True;
    }
  }
  return false;
}

void read(const Rule& rule, const Arguments& arguments, Reading& reading) {
  for (Py_ssize_t i = 0; i < arguments.positional; ++i) {
    Kind kind = Kind::other;
    if (rule.may_cast(i)) [[likely]] {
      kind = tensor::kind_of(arguments.values[i]);
      if (kind == Kind::sequence) {
        if ((read_sequence(rule, arguments.values[i], reading, 0) & floating) == 0) kind = Kind::other;
      } else if (kind == Kind::dtype) {
        reading.explicit_dtype = true;
      } else {
        reading.note(kind);
      }
    }
    reading.kinds[i] = kind;
  }
  const Py_ssize_t keyword_count = arguments.keyword_count();
  for (Py_ssize_t i = 0; i < keyword_count; ++i) {
    PyObject* name = PyTuple_GET_ITEM(arguments.keywords, i);
    PyObject* value = arguments.values[arguments.positional + i];
    Kind kind = Kind::other;
    if (value != Py_None) {
      if (same_name(name, names().out)) {
        reading.explicit_out = true;
      } else if (holds(rule.kept_keywords, name)) {
        // never cast, and not what decides
      } else if (same_name(name, names().dtype)) {
        reading.explicit_dtype = true;
      } else {
        kind = tensor::kind_of(value);
        if (kind == Kind::sequence) {
          if ((read_sequence(rule, value, reading, 0) & floating) == 0) kind = Kind::other;
        } else if (kind == Kind::dtype) {
          reading.explicit_dtype = true;
        } else {
          reading.note(kind);
          const bool is_first = arguments.positional == 0 && is_floating(kind) &&
                                (same_name(name, names().input) || same_name(name, names().query));
          if (is_first) reading.first = kind;
        }
      }
    }
    reading.kinds[arguments.positional + i] = kind;
  }
}

struct Plan {
  Decision decision;
  Kind to = Kind::other;  // Kind::other: nothing is to be cast
};

Plan decide(const Rule& rule, const Reading& reading) {
  const auto leave = [](Reason reason) { return Plan{{Precision::unchanged, reason}, Kind::other}; };
  if (reading.explicit_out) return leave(Reason::explicit_out);
  if (reading.explicit_dtype) return leave(Reason::explicit_dtype);
  if ((reading.seen & floating) == 0 || (reading.seen & bit(Kind::wide)) != 0) return leave(Reason::ineligible);
  Kind to = Kind::other;
  switch (rule.action) {
    case Rule::Action::precision:
      to = rule.to;
      break;
    case Rule::Action::widest:
      to = std::has_single_bit(static_cast<Kinds>(reading.seen & floating)) ? reading.first : Kind::f32;
      break;
    case Rule::Action::in_place:
      to = reading.kinds[0];
      if (!is_floating(to)) return leave(Reason::ineligible);
      break;
    case Rule::Action::first_input:
    case Rule::Action::scalars:
      to = reading.first;
      break;
    case Rule::Action::none:
    case Rule::Action::refused:
      return leave(rule.reason);
  }
  const Plan plan{{precision_of(to), rule.reason}, to};
  return plan;
}

// Is anything to be done for this plan?
bool must_cast(const Plan& plan, const Reading& reading) {
  return plan.to != Kind::other && (reading.seen & floating & ~bit(plan.to)) != 0;
}

struct Tally {
  bool may_reuse_memory = false;  // nobody but this call sees what is cast of an activation
  bool for_now = false;           // was the last cast such a one?
  bool leaves_casts = false;      // what no cast is kept of is left for torch to cast
  bool left_casts = false;        // and there was something
  unsigned casts = 0;             // arguments that were exchanged
  unsigned kept = 0;              // for casts that were there already
  // What is looked up for the first weight of a call and holds for all.
  bool looked_around = false;
  bool may_keep = false;
  bool records = false;
  tensor::CastResult made;
};

// A tensor without dimensions stands for a number where the rule brings numbers into range.
bool is_number_tensor(const Rule& rule, PyObject* item, Kind to) {
  return rule.saturate_tensors && to != Kind::f32 && tensor::count_elements(item) == 1 &&
         tensor::has_no_dimensions(item);
}

// Null, without an exception but an interrupt's, where no cast of this weight is kept.
PyObject* kept_cast(const Rule& rule, PyObject* weight, Kind to, Tally& tally) {
  if (!tally.looked_around) {
    tally.looked_around = true;
    tally.records = tensor::grad_is_enabled();
    tally.may_keep = (rule.keeps_weights == Rule::Keeps::always || !tally.records) && weights::may_be_kept();
  }
  if (!tally.may_keep) return nullptr;
  bool is_new = false;
  PyObject* kept = weights::kept(weight, to, tally.records, is_new);
  if (kept == nullptr) return nullptr;
  ++tally.casts;
  if (is_new) {
    tally.made.bytes += tensor::bytes_as(to, tensor::count_elements(weight));
  } else {
    ++tally.kept;
  }
  if (tally.records && !tally.made.recorded) tally.made.recorded = tensor::requires_grad(weight);
  return kept;
}

PyObject* cast_item(const Rule& rule, PyObject* item, Kind kind, Kind to, Tally& tally) {
  tally.for_now = false;
  if (!is_floating(kind) || kind == to) return Py_NewRef(item);
  if (rule.keeps_weights != Rule::Keeps::never && kind == Kind::f32 && Py_TYPE(item) == tensor::api.parameter) {
    if (PyObject* kept = kept_cast(rule, item, to, tally)) return kept;
    if (PyErr_Occurred() != nullptr) return nullptr;
  }
  const std::int64_t count = tally.leaves_casts ? tensor::count_elements(item) : 0;
  if (tally.leaves_casts && !tensor::is_cast_to_block(count)) {
    tally.left_casts = true;
    ++tally.casts;
    tally.made.bytes += tensor::bytes_as(to, count);
    if (!tally.made.recorded) tally.made.recorded = tensor::requires_grad(item);
    return Py_NewRef(item);
  }
  const bool saturates = is_number_tensor(rule, item, to);
  if (rule.action == Rule::Action::scalars && !saturates) return Py_NewRef(item);
  PyObject* made = saturates                ? tensor::cast_saturated(item, kind, to, tally.made)
                   : tally.may_reuse_memory ? tensor::cast_for_now(item, kind, to, tally.made, tally.for_now)
                                            : tensor::cast(item, kind, to, tally.made);
  if (made != nullptr) ++tally.casts;
  return made;
}

void let_go(PyObject* value, bool for_now) {
  if (for_now) {
    tensor::give_back(value);
  } else {
    Py_DECREF(value);
  }
}

// A new list or tuple with its tensors cast, where there is anything to cast; another one's class (a named tuple, say)
// is not kept, no operation asks.
PyObject* cast_sequence(const Rule& rule, PyObject* sequence, Kind to, Tally& tally, int depth) {
  // Not by iterating: torch does not either, and a subclass may do anything there.
  PyObject* items =
      PyTuple_Check(sequence) ? PyTuple_GetSlice(sequence, 0, PyTuple_GET_SIZE(sequence)) : PyList_AsTuple(sequence);
  if (items == nullptr) return nullptr;
  const bool may_reuse_memory = std::exchange(tally.may_reuse_memory, false);  // the list holds what it is given
  const Py_ssize_t size = PyTuple_GET_SIZE(items);
  PyObject* made = PyTuple_Check(sequence) ? PyTuple_New(size) : PyList_New(size);
  bool is_another = false;
  for (Py_ssize_t i = 0; made != nullptr && i < size; ++i) {
    PyObject* item = PyTuple_GET_ITEM(items, i);
    const Kind kind = tensor::kind_of(item);
    PyObject* value = kind == Kind::sequence && depth < deepest_sequence && may_exchange(rule, item)
                          ? cast_sequence(rule, item, to, tally, depth + 1)
                          : cast_item(rule, item, kind, to, tally);
    is_another = is_another || value != item;
    if (value == nullptr) {
      Py_CLEAR(made);
    } else if (PyTuple_Check(made)) {
      PyTuple_SET_ITEM(made, i, value);
    } else {
      PyList_SET_ITEM(made, i, value);
    }
  }
  tally.may_reuse_memory = may_reuse_memory;
  Py_DECREF(items);
  if (made == nullptr || is_another) return made;
  Py_DECREF(made);
  return Py_NewRef(sequence);
}

// Rule 9: a Python number that float32 holds and the lower precision does not.
PyObject* saturated(PyObject* number, Kind precision) {
  const double value = PyFloat_CheckExact(number) ? PyFloat_AS_DOUBLE(number) : PyLong_AsDouble(number);
  if (value == -1.0 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  const double limit = tensor::largest(precision);
  const double representable = tensor::largest(Kind::f32);
  if (value > limit && value <= representable) return PyFloat_FromDouble(limit);
  if (value < -limit && value >= -representable) return PyFloat_FromDouble(-limit);
  return nullptr;
}

bool is_number(PyObject* object) { return PyFloat_CheckExact(object) || PyLong_CheckExact(object); }

// New arguments with everything cast that the plan wants. Owns what it holds.
class CastArguments {
 public:
  explicit CastArguments(const Arguments& given) : given_(given), values_(given.count()), for_now_(given.count()) {}
  ~CastArguments() {
    for (Py_ssize_t i = 0; i < made_; ++i) let_go(values_[i], for_now_[i]);
  }
  CastArguments(const CastArguments&) = delete;
  CastArguments& operator=(const CastArguments&) = delete;

  // False with a Python exception set when a cast failed.
  bool make(const Rule& rule, const Reading& reading, Kind to, Tally& tally) {
    // Beside an input without dimensions a tensor without them is promoted like any other.
    if (rule.action == Rule::Action::scalars && given_.positional > 0 && is_floating(reading.kinds[0]) &&
        tensor::has_no_dimensions(given_.values[0])) {
      return keep_all();
    }
    const bool keeps_float32 = to != Kind::f32 && one_stays_in_float32(rule, reading);
    for (Py_ssize_t i = 0; i < given_.count(); ++i) {
      PyObject* value = given_.values[i];
      const Kind kind = reading.kinds[i];
      PyObject* made = nullptr;
      if (keeps_float32 && is_floating(kind) && may_stay_in_float32(rule, i)) {
        made = cast_item(rule, value, kind, Kind::f32, tally);
      } else if (kind == Kind::sequence) {
        made = cast_sequence(rule, value, to, tally, 0);
      } else if (rule.saturate && to != Kind::f32 && is_number(value)) {
        made = saturated(value, to);
        if (made != nullptr) {
          scalar_changed_ = true;
        } else {
          made = Py_NewRef(value);
        }
      } else {
        made = cast_item(rule, value, kind, to, tally);
      }
      if (made == nullptr) return false;
      for_now_[i] = std::exchange(tally.for_now, false);
      values_[i] = made;
      ++made_;
    }
    return true;
  }

  bool keep_all() {
    for (; made_ < given_.count(); ++made_) {
      values_[made_] = Py_NewRef(given_.values[made_]);
      for_now_[made_] = false;
    }
    return true;
  }

  // Is this argument one that the kernel takes in float32 beside a lower input?
  bool may_stay_in_float32(const Rule& rule, Py_ssize_t i) const {
    bool raised_only = false;
    bool off_cpu = false;
    if (i < given_.positional) {
      raised_only = i < 64 && ((rule.raised_positions >> i) & 1U) != 0;
      off_cpu = i < 64 && ((rule.off_cpu_positions >> i) & 1U) != 0;
    } else {
      PyObject* name = PyTuple_GET_ITEM(given_.keywords, i - given_.positional);
      raised_only = holds(rule.raised_keywords, name);
      off_cpu = holds(rule.off_cpu_keywords, name);
    }
    return raised_only || (off_cpu && !tensor::is_off_cpu(given_.values[i]));
  }

  // The kernel wants all of them in float32 then. A norm's bias alone does not decide: without a weight its backward
  // wants the bias as the input is.
  bool one_stays_in_float32(const Rule& rule, const Reading& reading) const {
    if (rule.raised_positions == 0 && rule.off_cpu_positions == 0) return false;
    for (Py_ssize_t i = 0; i < given_.count(); ++i) {
      if (!may_stay_in_float32(rule, i)) continue;
      if (reading.kinds[i] == Kind::f32) return true;
      if (rule.raised_positions == 0) return false;
    }
    return false;
  }

  bool scalar_changed() const { return scalar_changed_; }
  Arguments arguments() { return {values_.data(), given_.positional, given_.keywords}; }

 private:
  const Arguments& given_;
  SmallBuffer<PyObject*> values_;
  Py_ssize_t made_ = 0;
  SmallBuffer<bool> for_now_;
  bool scalar_changed_ = false;
};

// Takes the exception that is set out of the way, and drops it at the end.
class HeldError {
 public:
#if PY_VERSION_HEX >= 0x030C0000
  HeldError() : raised_(PyErr_GetRaisedException()) {}
  ~HeldError() { Py_XDECREF(raised_); }

 private:
  PyObject* raised_;
#else
  HeldError() { PyErr_Fetch(&type_, &value_, &traceback_); }
  ~HeldError() {
    Py_XDECREF(type_);
    Py_XDECREF(value_);
    Py_XDECREF(traceback_);
  }

 private:
  PyObject* type_ = nullptr;
  PyObject* value_ = nullptr;
  PyObject* traceback_ = nullptr;
#endif

 public:
  // The exception is set again, and no longer held.
  void restore() {
#if PY_VERSION_HEX >= 0x030C0000
    PyErr_SetRaisedException(std::exchange(raised_, nullptr));
#else
    PyErr_Restore(std::exchange(type_, nullptr), std::exchange(value_, nullptr), std::exchange(traceback_, nullptr));
#endif
  }
};

// Does torch.jit.trace record the call that has just failed? It crashes at the next operation after such a one. (It
// records no more by now, so it cannot be asked.)
bool was_recorded_by_jit() {
  HeldError held;
  bool found = false;
  for (FrameWalk walk; walk && !found; walk.outwards()) {
    PyObject* globals = walk.globals();
    PyObject* name = globals == nullptr ? nullptr : PyDict_GetItemString(globals, "__name__");
    found = name != nullptr && PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, "torch.jit._trace") == 0;
    Py_XDECREF(globals);
  }
  PyErr_Clear();
  held.restore();
  return found;
}

// May a call that failed be tried again without our casts? Only after what torch raises itself: an exception of any
// other class comes from Python code inside the call (a hook that stops a recomputation, say) and is not ours to catch.
bool may_retry() {
  PyObject* type = PyErr_Occurred();
  const bool is_torchs = type == PyExc_RuntimeError || type == PyExc_NotImplementedError || type == PyExc_TypeError ||
                         type == PyExc_ValueError || type == PyExc_IndexError;
  return is_torchs && !was_recorded_by_jit();
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

// A call failed with our casts: what would plain torch have done? Everything lower goes to float32, and if that works
// the operation has no kernel for the lower precision here (rule 8). Else the call is made as it was written; whatever
// comes of that is the caller's. An in-place target stays what it is, so there only the latter is tried. `as_written`
// tells that the call that failed was that already.
PyObject* call_without_lowering(Target& target, const Rule& rule, const Arguments& arguments, const Reading& reading,
                                bool as_written) {
  HeldError held;
  if (rule.action != Rule::Action::in_place) {
    Tally tally;
    CastArguments widened(arguments);
    const bool made = widened.make(rule, reading, Kind::f32, tally);
    PyObject* result = made ? call_original(target, widened.arguments()) : nullptr;
    if (result != nullptr) {
      report(target, {Precision::fp32, Reason::no_kernel}, tally);
      return result;
    }
    if (made ? tally.casts == 0 || !may_retry() : !may_do_without_cast()) return nullptr;
    PyErr_Clear();
  }
  if (as_written) {
    held.restore();
    return nullptr;
  }
  PyObject* result = call_original(target, arguments);
  if (result != nullptr) report(target, {Precision::unchanged, Reason::no_kernel}, {});
  return result;
}

// Is this call decided on elsewhere? Torch's own Python makes some for another operation, which was decided as a whole:
// below the dispatcher, and where a tracer asks what an operation consists of. And what is intercepted calls torch
// again.
bool is_decided_elsewhere(const Arguments& arguments) {
  if (is_below_dispatcher() || tensor::function_mode_is_on()) return true;
  if (!tensor::holds_subclass(arguments.values, arguments.count())) return false;
  return tensor::has_torch_function(arguments.values, arguments.count()) || caller_is_inside_of_an_operation();
}

// Is one of the floating tensors on a device of this kind?
bool holds_tensor_on(RuleSet::Device device, PyObject* const* values, Py_ssize_t count, int depth) {
  for (Py_ssize_t i = 0; i < count; ++i) {
    const Kind kind = tensor::kind_of(values[i]);
    if (is_floating(kind)) {
      // A plain tensor on the CPU is told at a glance.
      const bool off_cpu = !tensor::can_be_cast_inside(values[i]) && tensor::is_off_cpu(values[i]);
      if (off_cpu == (device == RuleSet::Device::accelerator)) return true;
    } else if (kind == Kind::sequence && depth < deepest_sequence) {
      // Nothing here runs Python code that could change the list.
      if (holds_tensor_on(device, PySequence_Fast_ITEMS(values[i]), PySequence_Fast_GET_SIZE(values[i]), depth + 1)) {
        return true;
      }
    }
  }
  return false;
}

bool holds_sparse_tensor(const Arguments& arguments, const Reading& reading) {
  for (Py_ssize_t i = 0; i < arguments.count(); ++i) {
    if (is_floating(reading.kinds[i]) && tensor::is_sparse(arguments.values[i])) return true;
  }
  return false;
}

// Is the stride of a convolution, its fourth argument, 1?
bool has_unit_stride(const Arguments& arguments) {
  static PyObject* const name = PyUnicode_InternFromString("stride");
  constexpr Py_ssize_t position = 3;
  PyObject* stride = position < arguments.positional ? arguments.values[position] : nullptr;
  for (Py_ssize_t i = 0; stride == nullptr && i < arguments.keyword_count(); ++i) {
    if (same_name(PyTuple_GET_ITEM(arguments.keywords, i), name)) stride = arguments.values[arguments.positional + i];
  }
  const auto is_one = [](PyObject* number) { return PyLong_CheckExact(number) && PyLong_AsLong(number) == 1; };
  if (stride == nullptr || is_one(stride)) return true;
  if (!PyTuple_Check(stride)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(stride); ++i) {
    if (!is_one(PyTuple_GET_ITEM(stride, i))) return false;
  }
  return true;
}

// Would the gradient of this convolution's weight be wrong in bfloat16?
bool has_wrong_gradient(const Rule& rule, const Arguments& arguments) {
  if (rule.wrong_if_strided && has_unit_stride(arguments)) return false;
  if (!tensor::grad_is_enabled()) return false;
  PyObject* answer = PyObject_Vectorcall(rule.wrong_gradient, arguments.values,
                                         static_cast<std::size_t>(arguments.positional), arguments.keywords);
  const bool is_wrong = answer == Py_True;
  Py_XDECREF(answer);
  // Arguments that do not fit are torch's to refuse.
  if (answer == nullptr && PyErr_ExceptionMatches(PyExc_Exception) != 0) PyErr_Clear();
  return is_wrong;
}

bool is_for_another_device(const RuleSet* region, const Arguments& arguments) {
  return region != nullptr && !holds_tensor_on(region->device, arguments.values, arguments.count(), 0);
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

// May a call that failed be repeated with other casts? A user's own function may not: what it did, it did. Nor may one
// that writes into its input.
bool may_repeat(const Target& target, const Rule& rule) {
  return target.shape != Target::Shape::python && rule.action != Rule::Action::in_place;
}

// The original of a call that is decided when it comes back: an operator of torch.ops does not count as running.
PyObject* call_undecided(Target& target, const Arguments& arguments) {
  return target.is_operator() ? call_operator(target, arguments) : call_original(target, arguments);
}

// F.linear or F.conv2d of a float32 weight where nothing is recorded, from the weight's packed form. Null, without an
// exception, where the call is to be made the ordinary way.
PyObject* answer_from_packed(const Rule& rule, const Arguments& arguments, const Reading& reading, Kind to,
                             Tally& tally) {
  // As the modules call them; conv2d with all of its options.
  const bool is_linear = rule.packs == weights::Packs::linear;
  const Py_ssize_t count = arguments.positional;
  if (arguments.keywords != nullptr || (is_linear ? count < 2 || count > 3 : count != 7)) return nullptr;
  PyObject* const* values = arguments.values;
  PyObject* bias = count >= 3 ? values[2] : Py_None;
  if (Py_TYPE(values[1]) != tensor::api.parameter || reading.kinds[1] != Kind::f32 ||
      !tensor::is_plain_tensor(values[0]) || !is_floating(reading.kinds[0])) {
    return nullptr;
  }
  if (bias != Py_None && (!tensor::is_plain_tensor(bias) || !is_floating(reading.kinds[2]))) return nullptr;
  for (Py_ssize_t i = 3; i < 6 && !is_linear; ++i) {
    if (!PyTuple_Check(values[i])) return nullptr;
  }
  weights::PackedCall call{rule.packs, values[0], values[1], bias, is_linear ? nullptr : values + 3};
  // What a linear layer's weight tells costs less than the rest; a convolution's depends on how its input lies.
  if (is_linear && !weights::may_be_packed(call, to)) return nullptr;
  if (tensor::grad_is_enabled() || tensor::is_traced()) return nullptr;
  if (!is_linear) {
    call.reorders = tensor::is_channels_first(call.input);
    if (!call.reorders && !tensor::is_channels_last(call.input)) return nullptr;
    if (!weights::may_be_packed(call, to)) return nullptr;
  }
  Tally made;
  made.may_reuse_memory = true;
  call.input = cast_item(rule, values[0], reading.kinds[0], to, made);
  const bool input_for_now = made.for_now;
  call.bias = call.input == nullptr ? nullptr
              : bias == Py_None     ? Py_NewRef(Py_None)
                                    : cast_item(rule, bias, reading.kinds[2], to, made);
  const bool bias_for_now = made.for_now && bias != Py_None;
  PyObject* result = call.bias == nullptr ? nullptr : weights::answer(call, to);
  if (call.input != nullptr) let_go(call.input, input_for_now);
  if (call.bias != nullptr) let_go(call.bias, bias_for_now);
  if (result == nullptr) {
    drop_error();
    return nullptr;
  }
  ++made.casts;
  ++made.kept;
  tally = made;
  return result;
}

// Shall torch itself cast, within its operation? Only where it casts nothing else than we would.
bool may_leave_casts(const Target& target, const Rule& rule, const Arguments& arguments, const Reading& reading) {
  if (!rule.casts_inside || rule.action != Rule::Action::precision || rule.to == Kind::f32) return false;
  if (target.shape != Target::Shape::function && target.shape != Target::Shape::method) return false;
  for (Py_ssize_t i = 0; i < arguments.count(); ++i) {
    if (reading.kinds[i] == Kind::sequence) return false;
    if (is_floating(reading.kinds[i]) && !tensor::can_be_cast_inside(arguments.values[i])) return false;
  }
  return tensor::may_cast_inside() && !tensor::is_intercepted();
}

// As call_original, of a call that no function mode sees. A function's parser holds its tensors in C++ for as long as
// the call takes, a method's does not hold the tensor it belongs to.
PyObject* call_unseen(Target& target, const Arguments& arguments) {
  const bool has_twin = target.twin != nullptr && arguments.positional == 2 && arguments.keywords == nullptr &&
                        tensor::is_plain_tensor(arguments.values[0]) && tensor::is_plain_tensor(arguments.values[1]);
  if (!has_twin) return call_original(target, arguments);
  return call_with_values(PyCFunction_GET_FUNCTION(target.twin), PyCFunction_GET_SELF(target.twin), arguments);
}

PyObject* call_and_cast_inside(Target& target, const Arguments& arguments, Kind to) {
  const tensor::CastsInside on(to);
  return call_unseen(target, arguments);
}

// One try of a call with its casts, and what came of it.
struct Attempt {
  Tally tally;
  bool made = true;  // the casts were
  bool scalar_changed = false;
  bool interrupted = false;
};

PyObject* attempt_as_they_lie(Target& target, const Rule& rule, const Arguments& arguments, const Reading& reading,
                              Kind to, bool records, Attempt& attempt) {
  Tally& tally = attempt.tally;
  if (rule.packs != weights::Packs::nothing && to == Kind::bf16) {
    if (PyObject* result = answer_from_packed(rule, arguments, reading, to, tally)) return result;
    attempt.interrupted = PyErr_Occurred() != nullptr;
    if (attempt.interrupted) return nullptr;
  }
  // Where something is recorded the graph holds what was cast.
  tally.may_reuse_memory =
      !records && rule.keeps_weights == Rule::Keeps::always && target.shape != Target::Shape::python;
  tally.leaves_casts = records && may_leave_casts(target, rule, arguments, reading);
  CastArguments cast(arguments);
  attempt.made = cast.make(rule, reading, to, tally);
  attempt.scalar_changed = cast.scalar_changed();
  if (!attempt.made) return nullptr;
  return tally.left_casts ? call_and_cast_inside(target, cast.arguments(), to) : call_unseen(target, cast.arguments());
}

// Is there a bias to be added to a product?
bool has_bias(const Arguments& arguments) { return arguments.positional == 3 && arguments.values[2] != Py_None; }

// Is it a product of rows that do not lie evenly, and of a matrix?
bool is_of_uneven_rows(const Arguments& arguments, const Reading& reading) {
  if (arguments.keywords != nullptr || arguments.positional < 2 || arguments.positional > 3) return false;
  const Py_ssize_t tensors = has_bias(arguments) ? 3 : 2;
  for (Py_ssize_t i = 0; i < tensors; ++i) {
    if (!is_floating(reading.kinds[i]) || !tensor::is_plain_tensor(arguments.values[i])) return false;
  }
  DLTensor matrix;
  return tensor::has_uneven_rows(arguments.values[0], !has_bias(arguments)) &&
         tensor::view_on_cpu(arguments.values[1], matrix) && matrix.ndim == 2;
}

// Torch makes such a product first, and then adds the bias to what was rounded.
bool add_bias(const Rule& rule, PyObject* result, PyObject* bias, Kind kind, Kind to, Tally& tally) {
  PyObject* cast = cast_item(rule, bias, kind, to, tally);
  if (cast == nullptr) return false;
  const bool added = tensor::add_in_place(result, cast);
  let_go(cast, tally.for_now);
  return added;
}

PyObject* attempt_in_rows(Target& target, const Rule& rule, const Arguments& arguments, const Reading& reading, Kind to,
                          Attempt& attempt) {
  tensor::CastResult seen;
  PyObject* const rows = tensor::cast_in_rows(arguments.values[0], reading.kinds[0], to, seen);
  if (rows == nullptr) return attempt_as_they_lie(target, rule, arguments, reading, to, false, attempt);
  PyObject* const values[] = {rows, arguments.values[1]};
  Reading in_rows(2);
  in_rows.seen = reading.seen;
  in_rows.first = reading.first;
  in_rows.kinds[0] = to;
  in_rows.kinds[1] = reading.kinds[1];
  PyObject* result = attempt_as_they_lie(target, rule, {values, 2, nullptr}, in_rows, to, false, attempt);
  tensor::give_back(rows);
  if (reading.kinds[0] != to) {
    ++attempt.tally.casts;
    attempt.tally.made.bytes += seen.bytes;
  }
  if (result != nullptr && has_bias(arguments) &&
      !add_bias(rule, result, arguments.values[2], reading.kinds[2], to, attempt.tally)) {
    Py_CLEAR(result);
  }
  return result;
}

PyObject* attempt_with_casts(Target& target, const Rule& rule, const Arguments& arguments, const Reading& reading,
                             Kind to, Attempt& attempt) {
  const bool records = tensor::grad_is_enabled();
  return rule.wants_rows && !records && to != Kind::f32 && is_of_uneven_rows(arguments, reading)
             ? attempt_in_rows(target, rule, arguments, reading, to, attempt)
             : attempt_as_they_lie(target, rule, arguments, reading, to, records, attempt);
}

// Is it one of the calls that may be left as they are written where that is faster? Not where a backward follows, of
// whose time nothing is known.
bool may_be_skipped(const Target& target, const Rule& rule, const Reading& reading) {
  return rule.action == Rule::Action::precision && rule.to != Kind::f32 && rule.keeps_weights == Rule::Keeps::always &&
         (reading.seen & floating) == bit(Kind::f32) &&
         (target.shape == Target::Shape::function || target.shape == Target::Shape::method) &&
         !tensor::grad_is_enabled() && !tensor::is_traced();
}

// The shortest calls decide, of some made in turn. An interrupt leaves its exception.
Verdict measure(Target& target, const Rule& rule, const Arguments& arguments, const Reading& reading, Kind to) {
  constexpr double clearly = 1.05;
  double lowered_time = 1e9;
  double written_time = 1e9;
  for (int i = 0; i < 5; ++i) {
    const double one = time_of([&] {
      Attempt attempt;
      return attempt_with_casts(target, rule, arguments, reading, to, attempt);
    });
    const double other = one < 0 ? -1.0 : time_of([&] { return call_original(target, arguments); });
    if (other < 0) {
      // The ordinary call will say what is wrong.
      drop_error();
      return Verdict::lower;
    }
    lowered_time = std::min(lowered_time, one);
    written_time = std::min(written_time, other);
    // Not by the first round: what was never called as it is written has to be prepared by torch's libraries first.
    if (i > 0 && lowered_time * 2 < written_time) break;
  }
  return written_time * clearly < lowered_time ? Verdict::as_written : Verdict::lower;
}

// Is this call to be left as it is written, because that is faster?
bool is_slower_lowered(Target& target, const Rule& rule, const Arguments& arguments, const Reading& reading, Kind to) {
  const std::uint64_t shape = may_be_skipped(target, rule, reading) ? shape_of(target, to, arguments) : 0;
  if (shape == 0) return false;
  Verdict verdict = verdict_on(shape);
  if (verdict == Verdict::due) {
    verdict = measure(target, rule, arguments, reading, to);
    set_verdict(shape, verdict);
  }
  return verdict == Verdict::as_written;
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
  }
  const RuleSet* region = thread_state.region;
  if (is_for_another_device(region, arguments)) {
    report(target, {Precision::unchanged, Reason::other_device}, {});
    return call_original(target, arguments);
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
  if (rule.wrong_gradient != nullptr && plan.to == Kind::bf16 && has_wrong_gradient(rule, arguments)) [[unlikely]] {
    return call_without_lowering(target, rule, arguments, reading, false);
  }
  if (rule.wrong_gradient != nullptr && PyErr_Occurred() != nullptr) return nullptr;
  Attempt attempt;
  PyObject* result = attempt_with_casts(target, rule, arguments, reading, plan.to, attempt);
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
      lowered.remember(result);
    } else if (region != nullptr && region->after_recorded_cast != nullptr) {
      PyObject* done = PyObject_CallOneArg(region->after_recorded_cast, result);
      if (done == nullptr) Py_CLEAR(result);
      Py_XDECREF(done);
    }
  }
  return result;
}

// Is there a number that rule 9 may change?
bool has_number_beyond(Kind precision, const Arguments& arguments) {
  const double limit = tensor::largest(precision);
  for (Py_ssize_t i = 0; i < arguments.count(); ++i) {
    PyObject* value = arguments.values[i];
    if (!is_number(value)) continue;
    int overflow = 0;
    const double number = PyFloat_CheckExact(value) ? PyFloat_AS_DOUBLE(value)
                                                    : static_cast<double>(PyLong_AsLongAndOverflow(value, &overflow));
    if (overflow != 0 || !(std::abs(number) <= limit)) return true;
  }
  return false;
}

// The original of a function or method with METH_VARARGS | METH_KEYWORDS; the arguments in the form that it takes.
PyObject* call_with_tuple(PyCFunction original, PyObject* self, const Arguments& arguments, Py_ssize_t skip) {
  PyObject* tuple = PyTuple_New(arguments.positional - skip);
  if (tuple == nullptr) return nullptr;
  for (Py_ssize_t i = skip; i < arguments.positional; ++i) {
    PyTuple_SET_ITEM(tuple, i - skip, Py_NewRef(arguments.values[i]));
  }
  PyObject* dictionary = nullptr;
  const Py_ssize_t keyword_count = arguments.keyword_count();
  if (keyword_count != 0) {
    dictionary = PyDict_New();
    for (Py_ssize_t i = 0; dictionary != nullptr && i < keyword_count; ++i) {
      if (PyDict_SetItem(dictionary, PyTuple_GET_ITEM(arguments.keywords, i),
                         arguments.values[arguments.positional + i]) < 0) {
        Py_CLEAR(dictionary);
      }
    }
    if (dictionary == nullptr) {
      Py_DECREF(tuple);
      return nullptr;
    }
  }
  PyObject* result =
      reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void*>(original))(self, tuple, dictionary);
  Py_DECREF(tuple);
  Py_XDECREF(dictionary);
  return result;
}

}  // namespace

PyObject* call_with_values(PyCFunction function, PyObject* self, const Arguments& arguments) {
  return call_with_tuple(function, self, arguments, 0);
}

// A Python function as it is. What is called may be exchanged meanwhile, by an installation.
static PyObject* call_python(Target& target, const Arguments& arguments) {
  PyObject* called = Py_NewRef(target.called);
  PyObject* result =
      PyObject_Vectorcall(called, arguments.values, static_cast<std::size_t>(arguments.positional), arguments.keywords);
  Py_DECREF(called);
  return result;
}

// A function that decides its own precision: inside of it the lists are silent. torch.compile has to know where that is
// a user's code, which it may compile; torch's own is decided as a whole.
static PyObject* call_deciding(Target& target, const Arguments& arguments) {
  ThreadState& state = thread_state;
  if (state.silent) return call_python(target, arguments);
  if (target.index != no_index) {
    state.silent = true;
    PyObject* result = call_python(target, arguments);
    state.silent = false;
    return result;
  }
  const std::optional<std::size_t> regions = begin_silence();
  if (!regions) return nullptr;
  PyObject* result = call_python(target, arguments);
  HeldError held;
  end_silence(*regions);
  held.restore();
  return result;
}

PyObject* call_operator(Target& target, const Arguments& arguments) {
  if (target.shape == Target::Shape::slow_operator) {
    return call_with_tuple(target.original, PyCFunction_GET_SELF(target.object), arguments, 0);
  }
  return target.original_slot(target.object, arguments.values, static_cast<std::size_t>(arguments.positional),
                              arguments.keywords);
}

PyObject* call_original(Target& target, const Arguments& arguments) {
  switch (target.shape) {
    case Target::Shape::function:
      return call_with_tuple(target.original, PyCFunction_GET_SELF(target.object), arguments, 0);
    case Target::Shape::slow_operator:
    case Target::Shape::fast_operator: {
      ThreadState& state = thread_state;
      const Target* outer = std::exchange(state.running_operator, &target);
      PyObject* result = call_operator(target, arguments);
      state.running_operator = outer;
      return result;
    }
    case Target::Shape::method:
      return call_with_tuple(target.original, arguments.values[0], arguments, 1);
    case Target::Shape::method_no_arguments:
      return target.original(arguments.values[0], nullptr);
    default:
      return call_deciding(target, arguments);
  }
}

// Apart from answer, whose early way out then needs no room for a reading.
[[gnu::noinline]] static PyObject* answer_covered(Target& target, const Rule& rule, const Arguments& arguments) {
  Reading reading(arguments.count());
  read(rule, arguments, reading);
  const Plan plan = decide(rule, reading);
  if (must_cast(plan, reading)) return answer_with_casts(target, rule, arguments, reading, plan);
  if (rule.is_product && tensor::is_lower(plan.to) && holds_sparse_tensor(arguments, reading)) [[unlikely]] {
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
    // Not all of them count up the version of what they write into (torch.kron).
    if (plan.decision.reason == Reason::explicit_out) weights::tensor_escapes(result, false);
    report(target, plan.decision, {});
    return result;
  }
  // What is lower already may have no kernel either (rule 8).
  if (!tensor::is_lower(plan.to) || !may_repeat(target, rule) || !may_retry()) return nullptr;
  HeldError held;
  const bool is_place = is_decided_elsewhere(arguments) || (may_be_a_place(thread_state) && why_not(thread_state)) ||
                        is_for_another_device(thread_state.region, arguments);
  held.restore();
  return is_place ? nullptr : call_without_lowering(target, rule, arguments, reading, true);
}

// What the lists say of a target: the innermost region's, or convert's. A user's own function has its own rule.
static const Rule& rule_of_lists(const Target& target) {
  const RuleSet* region = thread_state.region;
  if (region == nullptr || target.index == no_index) [[likely]]
    return *target.listed;
  return *region->rules[target.index];
}

PyObject* answer(Target& target, const Arguments& arguments) {
  const ThreadState& state = thread_state;
  if (casts_are_disabled()) return call_original(target, arguments);
  const bool lists_speak = !state.silent || target.shape == Target::Shape::python;
  // Read once: another policy may be installed while the arguments are looked at.
  const Rule& rule = lists_speak ? rule_of_lists(target) : *target.unlisted;
  if (rule.action == Rule::Action::none) {
    // A function of torch's that other lists cover: here the lists speak of what it calls.
    return target.shape == Target::Shape::python ? call_python(target, arguments) : call_original(target, arguments);
  }
  if (rule.sparse_keyword != nullptr && has_sparse_gradient(rule, arguments)) [[unlikely]] {
    const Rule& silent = *target.unlisted;
    if (silent.action == Rule::Action::none) return call_original(target, arguments);
    return answer_covered(target, silent, arguments);
  }
  return answer_covered(target, rule, arguments);
}

int answer_assignment(Target& target, PyObject* tensor, PyObject* key, PyObject* value, objobjargproc original) {
  const Rule& rule = rule_of_lists(target);
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

void forget_lowered(PyObject* tensor) noexcept { lowered.forget(tensor); }

bool was_lowered(PyObject* tensor) noexcept {
  for (PyObject* reference : lowered.references) {
    if (reference != nullptr && tensor::is_reference_to(reference, tensor)) return true;
  }
  return false;
}

bool may_be_lowered_in_graph(PyObject* tensor) noexcept {
  return tensor::is_lower(tensor::kind_of(tensor)) && tensor::requires_grad(tensor) && lists_speak_here() &&
         !why_not(thread_state).has_value();
}

}  // namespace habana_mp::engine

// Skips lowering if it is slower: on a CPU a small GEMM may take longer in bfloat16. If the user sets `skip_slower`,
// each shape is measured once, and left as it is written if that is faster.

#include <algorithm>
#include <bit>
#include <new>
#include <unordered_map>

#include "engine/accelerators.hpp"
#include "engine/attempt.hpp"
#include "engine/originals.hpp"
#include "errors.hpp"
#include "host/modes.hpp"
#include "host/tensors.hpp"
#include "module_parts.hpp"
#include "pybind.hpp"
#include "stopwatch.hpp"
#include "tensor/cast.hpp"

namespace py = pybind11;

namespace habana_mp::accel {

using engine::Arguments;
using engine::Attempt;
using engine::Call;
using engine::Target;
using rules::Action;

namespace {

// A weight is cast at its first use and packed after several more, so a shape is measured only after this many.
constexpr std::uint32_t uses_before = 8;
// A program with more shapes than this hardly repeats them, so further ones are not measured.
constexpr std::size_t most_shapes = 4096;

enum class Verdict : std::uint8_t {
  unknown,  // not used often enough: its weights may not be cached and packed yet
  due,      // to be measured now
  lower,
  as_written,
};

struct Measured {
  std::uint32_t uses = 0;
  Verdict verdict = Verdict::unknown;
};

bool is_on = false;
Verdict assumed = Verdict::unknown;

NeverDestroyed<std::unordered_map<std::uint64_t, Measured>> all_shapes;
std::unordered_map<std::uint64_t, Measured>& shapes() { return *all_shapes; }

// Two shapes with one hash share a verdict, which costs time and nothing else.
struct Hash {
  std::uint64_t value = 0xcbf29ce484222325U;
  void add(std::uint64_t number) { value = std::rotl((value ^ number) * 0x9e3779b97f4a7c15U, 29); }
};

bool add_tensor(Hash& hash, PyObject* tensor) {
  DLTensor view;
  if (!host::is_plain_tensor(tensor) || !host::view_on_cpu(tensor, view)) return false;
  hash.add(static_cast<std::uint64_t>(view.ndim));
  if (host::is_parameter(tensor)) {
    for (std::int32_t i = 0; i < view.ndim; ++i) hash.add(static_cast<std::uint64_t>(view.shape[i]));
  } else {
    hash.add(static_cast<std::uint64_t>(std::bit_width(static_cast<std::uint64_t>(host::count_elements(tensor)))));
    hash.add(static_cast<std::uint64_t>(view.ndim == 0 ? 0 : view.shape[view.ndim - 1]));
  }
  // The order of its dimensions in memory.
  const bool channels_last = view.ndim > 1 && view.strides != nullptr && view.strides[1] == 1;
  hash.add(channels_last ? 1U : 0U);
  return true;
}

void add_option(Hash& hash, PyObject* value) {
  if (PyLong_Check(value)) {
    hash.add(static_cast<std::uint64_t>(PyLong_AsLongLong(value)));
    clear_error();
  } else if (PyTuple_Check(value)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i) {
      PyObject* item = PyTuple_GET_ITEM(value, i);
      if (PyLong_Check(item)) hash.add(static_cast<std::uint64_t>(PyLong_AsLongLong(item)));
    }
    clear_error();
  } else {
    hash.add(reinterpret_cast<std::uintptr_t>(Py_TYPE(value)));
  }
}

// Returns a hash of all that a measurement depends on: the operation, the precision, the weights' sizes, the magnitude
// of the other inputs, the options. Returns 0 if the call cannot be measured.
std::uint64_t shape_of(const Target& target, Kind to, const Arguments& arguments) {
  Hash hash;
  hash.add(reinterpret_cast<std::uintptr_t>(&target));
  hash.add(static_cast<std::uint64_t>(to));
  for (Py_ssize_t i = 0; i < arguments.count(); ++i) {
    PyObject* value = arguments.values[i];
    switch (host::kind_of(value)) {
      case Kind::f32:
        if (!add_tensor(hash, value)) return 0;
        break;
      case Kind::other:
        add_option(hash, value);
        break;
      case Kind::sequence:
        if (!PyTuple_Check(value)) return 0;
        add_option(hash, value);
        break;
      default:
        return 0;  // an argument in a lower precision: the user chose it
    }
  }
  return hash.value | 1U;
}

Verdict verdict_on(std::uint64_t shape) {
  if (assumed != Verdict::unknown) return assumed;
  auto& all = shapes();
  const auto found = all.find(shape);
  if (found == all.end()) {
    if (all.size() < most_shapes) all.emplace(shape, Measured{1, Verdict::unknown});
    return Verdict::unknown;
  }
  Measured& measured = found->second;
  if (measured.verdict == Verdict::unknown && ++measured.uses > uses_before) measured.verdict = Verdict::due;
  return measured.verdict;
}

void set_verdict(std::uint64_t shape, Verdict verdict) { shapes()[shape].verdict = verdict; }

// True if this call may be left as it is written when that is faster. False if gradients are enabled, since the time of
// the backward is unknown.
bool may_be_skipped(const Call& call) {
  const auto& [target, rule, _, reading] = call;
  return rule.action == Action::precision && rule.to != Kind::f32 && rule.takes_weights_once() &&
         (reading.present.kinds & floating) == bit(Kind::f32) &&
         (target.kind == host::CallableKind::function || target.kind == host::CallableKind::method) &&
         !host::grad_is_enabled() && !host::is_traced();
}

// Measures the call both ways in turn, several times. The shortest calls decide. An interrupt leaves its exception set.
Verdict measure(const Call& call, Kind to) {
  constexpr double clearly = 1.05;
  double lowered_time = 1e9;
  double written_time = 1e9;
  for (int i = 0; i < 5; ++i) {
    const double one = time_of([&] {
      Attempt attempt;
      return engine::attempt_with_casts(call, to, attempt);
    });
    const double other = one < 0 ? -1.0 : time_of([&] { return engine::call_original(call.target, call.arguments); });
    if (other < 0) {
      // The ordinary call raises the error.
      drop_error();
      return Verdict::lower;
    }
    lowered_time = std::min(lowered_time, one);
    written_time = std::min(written_time, other);
    // The first round does not decide: torch's libraries prepare an operation at its first call as written.
    if (i > 0 && lowered_time * 2 < written_time) break;
  }
  return written_time * clearly < lowered_time ? Verdict::as_written : Verdict::lower;
}

// Returns `yes` if the call is faster as it is written. Returns `failed`, with the exception set, after an interrupt.
rules::Answer is_slower_lowered(const Call& call, Kind to) {
  if (!is_on) [[likely]]
    return rules::Answer::no;
  const std::uint64_t shape = may_be_skipped(call) ? shape_of(call.target, to, call.arguments) : 0;
  if (shape == 0) return rules::Answer::no;
  Verdict verdict = Verdict::unknown;
  try {
    verdict = verdict_on(shape);
    if (verdict == Verdict::due) {
      verdict = measure(call, to);
      set_verdict(shape, verdict);
    }
  } catch (const std::bad_alloc&) {
    drop_error();  // a later call is measured
  }
  if (PyErr_Occurred() != nullptr) return rules::Answer::failed;
  return verdict == Verdict::as_written ? rules::Answer::yes : rules::Answer::no;
}

void add_to(py::module_& module) {
  // Also forgets all measurements.
  module.def("set_skips_slower", [](bool on) {
    is_on = on;
    shapes().clear();
  });
  // For tests: replaces every measurement by one verdict, "as written" for 0 and "lower" above. A negative number
  // brings the measurements back.
  module.def("assume_that_lowering_pays", [](int answer) {
    assumed = answer < 0 ? Verdict::unknown : answer == 0 ? Verdict::as_written : Verdict::lower;
  });
}

[[maybe_unused]] const bool is_plugged_in = [] {
  engine::accelerators.is_slower_lowered = &is_slower_lowered;
  module_parts().push_back({"slower", &add_to});
  return true;
}();

}  // namespace

}  // namespace habana_mp::accel

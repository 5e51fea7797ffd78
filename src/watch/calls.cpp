#include "watch/calls.hpp"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "host/modes.hpp"
#include "host/reader.hpp"
#include "host/tensors.hpp"
#include "kernels/cast.hpp"
#include "watch/events.hpp"
#include "watch/noticed.hpp"

namespace habana_mp::watch {

namespace {

thread_local OpenCalls<Operation> open_calls;
Detail detail = Detail::modules;
NeverDestroyed<Owned> traced_place;
NeverDestroyed<Owned> mark_on_device;
NeverDestroyed<Owned> took_on_device;
// Estimates for casts that torch makes within its operation, which cannot be timed. A value takes as long as in a cast
// of this package.
double nanoseconds_a_byte = 0;
double nanoseconds_a_cast = 0;

double measured_nanoseconds_a_byte() {
  constexpr std::size_t count = 1 << 16;
  const std::vector<float> source(count, 1.0F);
  std::vector<std::uint16_t> target(count);
  std::uint64_t best = ~std::uint64_t{0};
  for (int round = 0; round < 5; ++round) {
    const std::uint64_t begin = nanoseconds();
    kernels::cast({source.data(), kernels::Float::f32, target.data(), kernels::Float::bf16, count}, 1);
    best = std::min(best, nanoseconds() - begin);
  }
  return static_cast<double>(best) / static_cast<double>(count * sizeof(std::uint16_t));
}

// Finds the place and the module in the code that a compiler traces.
void find_traced(Key& key) {
  if (!*traced_place) return;
  const Owned function = Owned::borrowed(traced_place->get());
  const Owned found(PyObject_CallNoArgs(function.get()));
  PyObject* file = nullptr;
  const char* name = nullptr;
  int line = 0;
  const char* module = nullptr;
  const bool is_found =
      found && found.get() != Py_None && PyArg_ParseTuple(found.get(), "Osiz", &file, &name, &line, &module) != 0;
  if (is_found) {
    const bool is_placed = detail == Detail::lines && PyUnicode_Check(file);
    key.place = is_placed ? place_named(file, name, line) : nullptr;
    key.module = module == nullptr ? nullptr : path_of_module(module);
  }
  clear_error();
}

void find_place(Key& key) {
  ModuleCall* const around = innermost_module_call();
  key.module = around == nullptr ? nullptr : around->path();
  const bool in_backward = around == nullptr ? host::gradients_are_worked_out() : around->is_in_backward;
  key.phase = in_backward ? Phase::backward : Phase::forward;
  if (in_backward && around == nullptr) key.module = path_of_gradient();
  const bool is_intercepted = host::is_intercepted();
  const bool wants_lines = detail == Detail::lines;
  if (!wants_lines && !is_intercepted) return;
  const Place* const place = place_of_call(around, is_intercepted);
  if (place != nullptr && place->is_compiler) {
    key.phase = Phase::traced;
    find_traced(key);
  } else if (wants_lines) {
    key.place = place;
  }
}

Record* record_call(const std::string& operation, bool is_kept, rules::Decision decision, const Amounts& amounts) {
  const HeldError held;
  Key key;
  // Other code may run while the place is found. If it drops the records, the place is found again.
  for (std::uint64_t generation = ~std::uint64_t{0}; generation != record_generation();) {
    generation = record_generation();
    key = {.decision = decision};
    find_place(key);
  }
  key.operation = is_kept ? &operation : operation_named(operation);
  Record& record = record_of(key);
  ++record.calls;
  record.amounts.casts += amounts.casts;
  record.amounts.hits += amounts.hits;
  record.amounts.bytes += amounts.bytes;
  record.amounts.small += amounts.small;
  return &record;
}

Kind kind_of(rules::Precision precision) {
  switch (precision) {
    case rules::Precision::bf16:
      return Kind::bf16;
    case rules::Precision::fp16:
      return Kind::f16;
    case rules::Precision::fp32:
      return Kind::f32;
    default:
      return Kind::other;
  }
}

// Visits the tensors among the values, and in lists and tuples among them.
template <typename Visit>
void for_each_tensor(PyObject* const* values, Py_ssize_t count, const Visit& visit, bool may_nest = true) {
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (host::is_exact_tensor(values[i])) {  // weights are skipped: no call made them
      visit(values[i]);
    } else if (may_nest && (PyTuple_Check(values[i]) || PyList_Check(values[i]))) {
      for_each_tensor(PySequence_Fast_ITEMS(values[i]), PySequence_Fast_GET_SIZE(values[i]), visit, false);
    }
  }
}

void note_input(Record& record, PyObject* tensor, Kind wanted) {
  notice_input(record, tensor, wanted);
  const Record* const maker = maker_of(tensor);
  if (maker == nullptr) return;
  const Kind kind = host::kind_of(tensor);
  const std::uint64_t casts = wanted != Kind::other && is_floating(kind) && kind != wanted ? 1 : 0;
  for (Record::From& from : record.from) {
    if (from.record != maker) continue;
    ++from.calls;
    from.casts += casts;
    return;
  }
  record.from.push_back({maker, 1, casts});
}

// Returns an event that is recorded now on the device of a tensor or of another event. Null if the device has no
// events.
Owned mark_at(PyObject* place) {
  if (place == nullptr || !*mark_on_device) return nullptr;
  const HeldError held;
  const Owned function = Owned::borrowed(mark_on_device->get());
  Owned event(PyObject_CallOneArg(function.get(), place));
  clear_error();
  return event.get() == Py_None ? nullptr : std::move(event);
}

// The same for the first tensor among the arguments, if it is not on the CPU.
Owned mark_first(PyObject* const* arguments, Py_ssize_t count) {
  PyObject* const* const end = arguments + count;
  PyObject* const* const first = std::find_if(arguments, end, &host::is_tensor_base);
  return first != end && host::is_off_cpu(*first) ? mark_at(*first) : nullptr;
}

void add_span(Owned& spans, PyObject* begin, PyObject* end) noexcept {
  const HeldError held;
  if (!spans) spans = Owned(PyList_New(0));
  const Owned span(end == nullptr ? nullptr : PyTuple_Pack(2, begin, end));
  if (spans && span) PyList_Append(spans.get(), span.get());
  clear_error();
}

void ends_on_device(Operation& operation, bool is_recorded) {
  const Owned end = mark_at(operation.device_begin.get());
  if (Operation* const outer = operation.outer())
    add_span(outer->device_inside, operation.device_begin.get(), end.get());
  if (!end || !is_recorded) return;
  const HeldError held;
  const Owned function = Owned::borrowed(took_on_device->get());
  const auto or_none = [](const Owned& list) { return list ? list.get() : Py_None; };
  const Owned done(PyObject_CallFunction(function.get(), "nOOOO", static_cast<Py_ssize_t>(operation.record->number),
                                         operation.device_begin.get(), end.get(), or_none(operation.device_inside),
                                         or_none(operation.device_casts)));
  clear_error();
}

}  // namespace

Call::Call(const void* target, PyObject* const* arguments, Py_ssize_t count)
    : operation_(std::make_unique<Operation>()) {
  operation_->target = target;
  operation_->device_begin = mark_first(arguments, count);
  operation_->begin = nanoseconds();
  open_calls.add(*operation_);
}

bool Call::is_recorded() const noexcept {
  return operation_->record != nullptr && operation_->generation == record_generation();
}

Call::~Call() {
  const std::uint64_t end = nanoseconds();
  const std::uint64_t whole = end - operation_->begin;
  if (Operation* const outer = operation_->outer()) outer->inside += whole;
  operation_->leave();
  if (!is_recorded()) return;
  Record& record = *operation_->record;
  record.nanoseconds += whole - std::min(whole, operation_->inside);
  // Some casts are estimates, and casts within handled calls inside count for those calls.
  record.cast_nanoseconds += std::min(operation_->casting, whole - std::min(whole, operation_->inside));
  note_event({.record = static_cast<std::int64_t>(record.number),
              .begin = operation_->begin,
              .end = end,
              .thread = thread_number()});
}

void Call::weight_was_refused(std::uint8_t why) noexcept {
  if (is_recorded() && why < operation_->record->refused.size()) ++operation_->record->refused[why];
}

void Call::ends(PyObject* const* arguments, Py_ssize_t count, PyObject* result) {
  if (operation_->device_begin) ends_on_device(*operation_, is_recorded());
  if (!is_recorded() || detail != Detail::lines) return;
  const HeldError held;  // the call may have raised
  Record& record = *operation_->record;
  const Kind wanted = kind_of(record.key.decision.precision);
  for_each_tensor(arguments, count, [&](PyObject* tensor) { note_input(record, tensor, wanted); });
  notice_call(record, arguments, count, result);
  if (result != nullptr) for_each_tensor(&result, 1, [&](PyObject* tensor) { remember_result(tensor, record); });
}

void decided(const void* target, const std::string& operation, bool is_kept, rules::Decision decision,
             const Amounts& amounts, bool some_by_torch) {
  Record* const record = record_call(operation, is_kept, decision, amounts);
  Operation* const innermost = open_calls.innermost();
  if (innermost == nullptr || innermost->target != target) return;
  innermost->record = record;
  innermost->generation = record_generation();
  if (some_by_torch) {
    const double estimate = static_cast<double>(amounts.casts) * nanoseconds_a_cast +
                            static_cast<double>(amounts.bytes) * nanoseconds_a_byte;
    innermost->casting += static_cast<std::uint64_t>(estimate);
  }
}

CastTime::CastTime() : begin_(open_calls.innermost() == nullptr ? 0 : nanoseconds()) {
  if (begin_ != 0) device_begin_ = mark_at(open_calls.innermost()->device_begin.get());
}

CastTime::~CastTime() {
  Operation* const innermost = open_calls.innermost();
  if (innermost == nullptr || begin_ == 0) return;
  innermost->casting += nanoseconds() - begin_;
  if (device_begin_) add_span(innermost->device_casts, device_begin_.get(), mark_at(device_begin_.get()).get());
}

void set_device_clock(PyObject* mark, PyObject* took) noexcept {
  *mark_on_device = Owned::borrowed_or_null(mark);
  *took_on_device = Owned::borrowed_or_null(took);
}

void set_traced_place(PyObject* function) noexcept { *traced_place = Owned::borrowed_or_null(function); }

void begin(Detail wanted, double of_a_cast) {
  detail = wanted;
  nanoseconds_a_cast = of_a_cast;
  if (nanoseconds_a_byte == 0) nanoseconds_a_byte = measured_nanoseconds_a_byte();
  prepare_events();
  set_listening(Listener::watch, true);
}

void stop() noexcept { set_listening(Listener::watch, false); }

}  // namespace habana_mp::watch

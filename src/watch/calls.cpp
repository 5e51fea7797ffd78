#include "watch/calls.hpp"

#include <algorithm>
#include <utility>

#include "errors.hpp"
#include "host/frames.hpp"
#include "host/modes.hpp"
#include "host/tensors.hpp"
#include "watch/values.hpp"

namespace habana_mp::watch {

namespace {

thread_local OpenCall<Call> open_calls;
bool wants_lines = false;
NeverDestroyed<Owned> find_traced_place;
NeverDestroyed<Owned> mark_on_device;
NeverDestroyed<Owned> took_on_device;
double nanoseconds_a_cast = 0;
double nanoseconds_a_byte = 0;

// Finds the place and the module in the code that a compiler traced.
void find_traced(Key& key, PyObject* found) {
  PyObject* file = nullptr;
  const char* name = nullptr;
  int line = 0;
  const char* module = nullptr;
  const bool is_found = found != Py_None && PyArg_ParseTuple(found, "Osiz", &file, &name, &line, &module) != 0;
  if (is_found) {
    const bool is_placed = wants_lines && PyUnicode_Check(file);
    key.place = is_placed ? place_named(file, name, line) : nullptr;
    if (module != nullptr) key.module = path_of_module(module);
  }
  clear_error();
}

void find_place(Key& key, PyObject* traced) {
  ModuleCall* const around = innermost_module_call();
  key.module = around == nullptr ? nullptr : around->path();
  if (traced != nullptr) {
    key.phase = Phase::traced;
    find_traced(key, traced);
    return;
  }
  const bool in_backward = around == nullptr ? host::gradients_are_worked_out() : around->is_in_backward;
  key.phase = in_backward ? Phase::backward : Phase::forward;
  if (in_backward && around == nullptr) key.module = path_of_gradient();
  if (wants_lines) key.place = place_of_call(around);
}

Record* record_call(const std::string& operation, bool is_kept, rules::Decision decision, const Amounts& amounts,
                    PyObject* traced, PyObject* inside) {
  const HeldError held;
  Key key;
  // Other code may run while the place is found. If it drops the records, the place is found again.
  for (std::uint64_t generation = ~std::uint64_t{0}; generation != record_generation();) {
    generation = record_generation();
    key = {.decision = decision};
    find_place(key, traced);
  }
  if (inside != nullptr) key.inside = operation_named(host::bytes_of(inside));
  key.operation = is_kept ? &operation : operation_named(operation);
  Record& record = record_of(key);
  ++record.calls;
  record.amounts.casts += amounts.casts;
  record.amounts.hits += amounts.hits;
  record.amounts.bytes += amounts.bytes;
  record.amounts.needed += amounts.needed;
  return &record;
}

void note_input(Record& record, PyObject* tensor, Kind wanted) {
  if (!host::is_exact_tensor(tensor)) return;  // no call made a weight
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

void ends_on_device(const Call& call) {
  const Owned end = mark_at(call.device_begin.get());
  if (Call* const outer = call.outer()) add_span(outer->device_inside, call.device_begin.get(), end.get());
  if (!end || !call.is_recorded()) return;
  const HeldError held;
  const Owned function = Owned::borrowed(took_on_device->get());
  const auto or_none = [](const Owned& list) { return list ? list.get() : Py_None; };
  const Owned done(PyObject_CallFunction(function.get(), "nOOOO", static_cast<Py_ssize_t>(call.record->number),
                                         call.device_begin.get(), end.get(), or_none(call.device_inside),
                                         or_none(call.device_casts)));
  clear_error();
}

}  // namespace

Call::Call(const void* called, PyObject* const* arguments, Py_ssize_t count)
    : target(called), device_begin(mark_first(arguments, count)) {
  begin = nanoseconds();
  enter(open_calls);
}

bool Call::is_recorded() const noexcept { return record != nullptr && generation == record_generation(); }

Call::~Call() {
  const std::uint64_t end = nanoseconds();
  const std::uint64_t whole = end - begin;
  if (Call* const around = outer()) around->inside += whole;
  leave();
  if (!is_recorded()) return;
  const std::uint64_t own = whole - std::min(whole, inside);
  record->nanoseconds += own;
  // Some casts are estimates, and casts within handled calls inside count for those calls.
  record->cast_nanoseconds += std::min(casting, own);
  note_event({.record = static_cast<std::int64_t>(record->number), .begin = begin, .end = end});
}

void Call::weight_was_refused(std::size_t why) noexcept {
  if (is_recorded()) ++record->refused[why];
}

void Call::ends(PyObject* const* arguments, Py_ssize_t count, PyObject* result) {
  if (device_begin) ends_on_device(*this);
  if (!is_recorded() || !wants_lines) return;
  const HeldError held;  // the call may have raised
  host::for_each_tensor(arguments, count, [&](PyObject* tensor) { note_input(*record, tensor, record->wanted()); });
  notice_call(*record, arguments, count, result);
  if (result == nullptr) return;
  host::for_each_tensor(&result, 1, [&](PyObject* tensor) {
    if (host::is_exact_tensor(tensor)) remember_result(tensor, *record);
  });
}

PyObject* seen_outside(const std::string& operation, PyObject* const* arguments, Py_ssize_t count, PyObject* result) {
  if (!wants_lines || result == nullptr || innermost_module_call() != nullptr) return result;
  if (count == 2 && sensitivity_of(operation) == Sensitivity::sum)
    notice_difference(arguments[0], arguments[1], result);
  host::for_each_tensor(arguments, count, [result](PyObject* tensor) { pass_on_maker(tensor, result); });
  return result;
}

void decided(const void* target, const std::string& operation, bool is_kept, rules::Decision decision,
             const Amounts& amounts, bool some_by_torch, PyObject* traced, PyObject* inside) {
  Record* const record = record_call(operation, is_kept, decision, amounts, traced, inside);
  Call* const innermost = open_calls.outer();
  if (traced != nullptr || innermost == nullptr || innermost->target != target) return;
  innermost->record = record;
  innermost->generation = record_generation();
  if (some_by_torch) {
    const double estimate = static_cast<double>(amounts.casts) * nanoseconds_a_cast +
                            static_cast<double>(amounts.bytes) * nanoseconds_a_byte;
    innermost->casting += static_cast<std::uint64_t>(estimate);
  }
}

CastTime::CastTime() : call_(open_calls.outer()) {
  if (call_ != nullptr && call_->is_casting) call_ = nullptr;
  if (call_ == nullptr) return;
  call_->is_casting = true;
  device_begin_ = mark_at(call_->device_begin.get());
  begin_ = nanoseconds();
}

CastTime::~CastTime() {
  if (call_ == nullptr) return;
  call_->is_casting = false;
  call_->casting += nanoseconds() - begin_;
  if (device_begin_) add_span(call_->device_casts, device_begin_.get(), mark_at(device_begin_.get()).get());
}

void set_device_clock(PyObject* mark, PyObject* took) noexcept {
  *mark_on_device = Owned::borrowed_or_null(mark);
  *took_on_device = Owned::borrowed_or_null(took);
}

void set_traced_place(PyObject* function) noexcept { *find_traced_place = Owned::borrowed_or_null(function); }

Owned traced_place() {
  const HeldError held;
  const Owned function = Owned::borrowed_or_null(listens(Listener::watch) ? find_traced_place->get() : nullptr);
  Owned found(function ? PyObject_CallNoArgs(function.get()) : nullptr);
  clear_error();
  return found ? std::move(found) : Owned::borrowed(Py_None);
}

void begin(bool lines, double of_a_cast, double of_a_byte) {
  wants_lines = lines;
  nanoseconds_a_cast = of_a_cast;
  nanoseconds_a_byte = of_a_byte;
  prepare_events();
  set_listening(Listener::watch, true);
}

void stop() noexcept { set_listening(Listener::watch, false); }

}  // namespace habana_mp::watch

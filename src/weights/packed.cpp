#include "weights/packed.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "stopwatch.hpp"
#include "weights/entry.hpp"

namespace habana_mp::weights {

namespace {

std::array<PackingOperators, packs_count> operators;
int assumed = -1;

const PackingOperators& operators_of(Packs what) { return operators[static_cast<std::size_t>(what)]; }

// A weight is packed after so many uses in a row without a gradient and without a change.
constexpr std::uint32_t quiet_enough = 4;
// Below this many values the operator itself costs more than it spares.
constexpr std::int64_t worth_packing = 1 << 14;
// The packed call must be faster by this factor when it is measured.
constexpr double clearly = 1.1;
constexpr Py_ssize_t conv_options = 4;

// Whether packing pays is measured once for each (shape of the weight, size of the input, options): a dictionary.
PyObject* verdicts() {
  static PyObject* const all = PyDict_New();
  return all;
}

// (stride, padding, dilation, groups), or an empty tuple. A new reference.
PyObject* options_of(const PackedCall& call) {
  const Py_ssize_t count = call.what == Packs::conv2d ? conv_options : 0;
  PyObject* options = PyTuple_New(count);
  for (Py_ssize_t i = 0; options != nullptr && i < count; ++i) PyTuple_SET_ITEM(options, i, Py_NewRef(call.options[i]));
  return options;
}

// What a measurement holds for: the input's size counts by its number of binary digits. A new reference.
PyObject* case_of(const Entry& entry, const PackedCall& call) {
  const auto digits = std::bit_width(static_cast<std::uint64_t>(tensor::count_elements(call.input)));
  PyObject* options = options_of(call);
  PyObject* made = options == nullptr ? nullptr : Py_BuildValue("(ONi)", entry.size, options, static_cast<int>(digits));
  return made;
}

enum class Verdict : std::uint8_t { none, pays, does_not };

Verdict verdict_on(PyObject* one_case) {
  PyObject* known = one_case == nullptr ? nullptr : PyDict_GetItemWithError(verdicts(), one_case);
  PyErr_Clear();  // options that cannot be hashed are none that a layer has
  if (known == nullptr) return Verdict::none;
  return known == Py_True ? Verdict::pays : Verdict::does_not;
}

// Null, without an exception, where the operator was taken away meanwhile.
PyObject* call_operator(PyObject* one, PyObject* const* values, std::size_t count) {
  if (one == nullptr) return nullptr;
  Py_INCREF(one);
  PyObject* result = PyObject_Vectorcall(one, values, count, nullptr);
  Py_DECREF(one);
  return result;
}

PyObject* call_plain(const PackedCall& call, PyObject* weight) {
  PyObject* values[3 + conv_options] = {call.input, weight, call.bias};
  std::size_t count = 3;
  if (call.what == Packs::conv2d) {
    for (Py_ssize_t i = 0; i < conv_options; ++i) values[count++] = call.options[i];
  }
  return call_operator(operators_of(call.what).plain, values, count);
}

PyObject* call_packed(const PackedCall& call, PyObject* packed) {
  static PyObject* const none = PyUnicode_InternFromString("none");
  static PyObject* const no_scalars = PyTuple_New(0);
  static PyObject* const no_algorithm = PyUnicode_InternFromString("");
  PyObject* values[6 + conv_options] = {call.input, packed, call.bias};
  std::size_t count = 3;
  if (call.what == Packs::conv2d) {
    for (const std::size_t i : {1U, 0U, 2U, 3U}) values[count++] = call.options[i];  // padding comes first here
  }
  values[count++] = none;
  values[count++] = no_scalars;
  values[count++] = no_algorithm;
  return call_operator(operators_of(call.what).call, values, count);
}

// The packed form of a kept cast, a new reference.
PyObject* pack(const Entry& entry, const PackedCall& call) {
  PyObject* const pack_it = operators_of(call.what).pack;
  if (call.what == Packs::linear) {
    PyObject* const values[] = {entry.cast, Py_None};
    return call_operator(pack_it, values, 2);
  }
  PyObject* sizes = PyObject_CallMethod(call.input, "size", nullptr);
  if (sizes == nullptr) return nullptr;
  PyObject* const values[] = {entry.cast, call.options[1], call.options[0], call.options[2], call.options[3], sizes};
  PyObject* packed = call_operator(pack_it, values, 6);
  Py_DECREF(sizes);
  return packed;
}

// The shortest calls decide, of some made in turn: whatever else runs on this machine only makes a call longer.
bool pays(const PackedCall& call, PyObject* cast, PyObject* packed) {
  if (assumed >= 0) return assumed != 0;
  double plain = 1e9;
  double from_packed = 1e9;
  for (int i = 0; i < 5; ++i) {
    const double one = time_of([&] { return call_plain(call, cast); });
    const double other = time_of([&] { return call_packed(call, packed); });
    if (one < 0 || other < 0) return false;
    plain = std::min(plain, one);
    from_packed = std::min(from_packed, other);
  }
  return from_packed * clearly < plain;
}

// Packs the weight if that pays for this call.
void consider(Entry& entry, const PackedCall& call) {
  PyObject* one_case = case_of(entry, call);
  const Verdict known = verdict_on(one_case);
  if (one_case == nullptr || known == Verdict::does_not) {
    Py_XDECREF(one_case);
    PyErr_Clear();
    return;
  }
  entry.busy = true;
  PyObject* cast = Py_NewRef(entry.cast);
  PyObject* packed = pack(entry, call);
  const bool worth = packed != nullptr && (known == Verdict::pays || pays(call, cast, packed));
  PyObject* holder = worth ? tensor::make_holder(packed) : nullptr;
  const bool interrupted = PyErr_Occurred() != nullptr && PyErr_ExceptionMatches(PyExc_Exception) == 0;
  if (!interrupted) PyErr_Clear();
  entry.busy = false;
  Py_DECREF(cast);
  if (!interrupted) PyDict_SetItem(verdicts(), one_case, worth ? Py_True : Py_False);
  if (!interrupted) PyErr_Clear();
  Py_DECREF(one_case);
  // Not where somebody took the weight away meanwhile.
  if (worth && entry.has(Form::plain)) {
    entry.hold(Py_NewRef(packed), Py_XNewRef(holder), Form::packed);
    Py_XSETREF(entry.packed_for, options_of(call));
  }
  Py_XDECREF(holder);
  Py_XDECREF(packed);
}

bool are_its_options(PyObject* packed_for, const PackedCall& call) {
  const Py_ssize_t count = call.what == Packs::conv2d ? conv_options : 0;
  if (PyTuple_GET_SIZE(packed_for) != count) return false;
  for (Py_ssize_t i = 0; i < count; ++i) {
    const int equal = PyObject_RichCompareBool(PyTuple_GET_ITEM(packed_for, i), call.options[i], Py_EQ);
    PyErr_Clear();
    if (equal != 1) return false;
  }
  return true;
}

bool is_packed_for(const Entry& entry, const PackedCall& call) {
  if (!entry.has(Form::packed)) return false;
  PyObject* packed_for = Py_NewRef(entry.packed_for);
  const bool is_it = are_its_options(packed_for, call);
  Py_DECREF(packed_for);
  return is_it;
}

}  // namespace

void set_packing(Packs what, const PackingOperators& wanted) noexcept {
  for (PyObject* one : {wanted.pack, wanted.call, wanted.plain}) Py_XINCREF(one);
  const PackingOperators former = std::exchange(operators[static_cast<std::size_t>(what)], wanted);
  for (PyObject* one : {former.pack, former.call, former.plain}) Py_XDECREF(one);
}

void assume_that_packing_pays(int answer) noexcept {
  assumed = answer;
  PyDict_Clear(verdicts());
}

bool may_be_packed(const PackedCall& call, Kind to) noexcept {
  if (operators_of(call.what).call == nullptr || to != Kind::bf16) return false;
  const Entry* known = entry_of(call.weight, to);
  if (known == nullptr || known->cast == nullptr || known->busy) return false;
  if (known->form == Form::plain && (known->quiet_uses < quiet_enough || known->elements < worth_packing)) return false;
  const std::shared_ptr<Entry> entry = cache().entries.at({call.weight, to});  // comparing may let others run
  if (entry->form == Form::packed) return is_packed_for(*entry, call);
  PyObject* one_case = case_of(*entry, call);
  const Verdict verdict = verdict_on(one_case);
  Py_XDECREF(one_case);
  return verdict != Verdict::does_not;
}

PyObject* answer(const PackedCall& call, Kind to) noexcept {
  const auto found = cache().entries.find({call.weight, to});
  if (found == cache().entries.end()) return nullptr;
  const std::shared_ptr<Entry> held = found->second;
  Entry& entry = *held;
  if (entry.cast == nullptr || !is_unchanged(entry, call.weight)) return nullptr;
  if (entry.form == Form::plain) {
    if (tensor::count_elements(call.input) == 0) return nullptr;
    consider(entry, call);
    if (PyErr_Occurred() != nullptr) return nullptr;
  }
  if (!is_packed_for(entry, call) || !is_unchanged(entry, call.weight)) return nullptr;
  PyObject* packed = Py_NewRef(entry.cast);
  PyObject* result = call_packed(call, packed);
  Py_DECREF(packed);
  if (result == nullptr) {
    // The ordinary call will say what is wrong.
    if (PyErr_ExceptionMatches(PyExc_Exception) != 0) PyErr_Clear();
    entry.drop();
    return nullptr;
  }
  ++counts.hits;
  return result;
}

}  // namespace habana_mp::weights

#include "weights/packed.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "stopwatch.hpp"
#include "tensor/buffers.hpp"
#include "tensor/image_order.hpp"
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
// A form with another order is tried for so many kinds of calls at most: images may be of ever new sizes.
constexpr std::uint32_t most_probed = 8;

// Whether packing pays is measured once for each (shape of the weight, size of the input, options): a dictionary.
PyObject* verdicts() {
  static PyObject* const all = PyDict_New();
  return all;
}

// What a packed form is for: nothing, or (stride, padding, dilation, groups), and with them the input's sizes and the
// number of threads where the order of sums, which both have a part in, was found to be the same. A new reference.
PyObject* options_of(const PackedCall& call) {
  if (call.what != Packs::conv2d) return PyTuple_New(0);
  PyObject* const* options = call.options;
  if (!call.reorders) return PyTuple_Pack(conv_options, options[0], options[1], options[2], options[3]);
  DLTensor view;
  if (!tensor::view_on_cpu(call.input, view) || view.ndim != 4) return nullptr;
  return Py_BuildValue("(OOOOLLLLI)", options[0], options[1], options[2], options[3],
                       static_cast<long long>(view.shape[0]), static_cast<long long>(view.shape[1]),
                       static_cast<long long>(view.shape[2]), static_cast<long long>(view.shape[3]),
                       tensor::torch_threads());
}

// What a measurement holds for: the input's size counts by its number of binary digits. A new reference.
PyObject* case_of(const Entry& entry, const PackedCall& call) {
  const auto digits = std::bit_width(static_cast<std::uint64_t>(tensor::count_elements(call.input)));
  PyObject* options = options_of(call);
  if (options == nullptr) return nullptr;
  return Py_BuildValue("(ONiO)", entry.size, options, static_cast<int>(digits),
                       call.bias == Py_None ? Py_False : Py_True);
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

PyObject* call_packed_as_it_lies(const PackedCall& call, PyObject* packed) {
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

PyObject* call_packed(const PackedCall& call, PyObject* packed) {
  if (!call.reorders) return call_packed_as_it_lies(call, packed);
  PackedCall reordered = call;
  reordered.input = tensor::channels_last_for_now(call.input, Kind::bf16);
  if (reordered.input == nullptr) return nullptr;
  PyObject* made = call_packed_as_it_lies(reordered, packed);
  tensor::give_back(reordered.input);
  PyObject* result = made == nullptr ? nullptr : tensor::channels_first(made, Kind::bf16);
  Py_XDECREF(made);
  return result;
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

// Values of both signs from 1/2 to 2, whose sums depend on their order.
void fill_with_noise(void* bf16_values, std::int64_t count, std::uint64_t seed) {
  auto* const values = static_cast<std::uint16_t*>(bf16_values);
  std::uint64_t state = seed;
  for (std::int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    values[i] = static_cast<std::uint16_t>(0x3f00U | ((state >> 40U) & 0x80ffU));
  }
}

// Do two results lie in the same way and hold the same bits?
bool are_same(PyObject* one, PyObject* other) {
  tensor::Geometry a;
  tensor::Geometry b;
  if (one == nullptr || other == nullptr || !tensor::read_geometry(one, a) || !tensor::read_geometry(other, b)) {
    return false;
  }
  const auto bytes = static_cast<std::size_t>(tensor::bytes_as(Kind::bf16, tensor::count_elements(one)));
  return a.sizes == b.sizes && a.strides == b.strides && a.is_dense() && tensor::kind_of_tensor(one) == Kind::bf16 &&
         tensor::kind_of_tensor(other) == Kind::bf16 && std::memcmp(a.values, b.values, bytes) == 0;
}

// A convolution in another order may sum in another order, too. That shows in one of some ten thousand results, so
// enough of them are compared to be sure.
bool gives_the_same_bits(const PackedCall& call, PyObject* cast, PyObject* packed) {
  constexpr int probes = 5;
  constexpr std::int64_t enough = std::int64_t{1} << 17;
  PackedCall probe = call;
  void* values = nullptr;
  DLTensor view;
  probe.input = tensor::view_on_cpu(call.input, view) ? tensor::allocate_like(view, Kind::bf16, values) : nullptr;
  bool same = probe.input != nullptr;
  std::int64_t compared = 0;
  for (std::uint64_t seed = 1; same && compared < enough && seed <= probes; ++seed) {
    fill_with_noise(values, tensor::count_elements(probe.input), seed);
    PyObject* plain = call_plain(probe, cast);
    PyObject* from_packed = plain == nullptr ? nullptr : call_packed(probe, packed);
    same = are_same(plain, from_packed);
    compared += same ? tensor::count_elements(plain) : 0;
    Py_XDECREF(plain);
    Py_XDECREF(from_packed);
  }
  Py_XDECREF(probe.input);
  return same && compared >= enough;
}

// The shortest calls decide, of some made in turn: whatever else runs on this machine only makes a call longer.
bool pays(const PackedCall& call, PyObject* cast, PyObject* packed) {
  if (call.reorders && !gives_the_same_bits(call, cast, packed)) return false;
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
  if (call.reorders && known == Verdict::none) ++entry.probed;
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
  PyObject* options = worth ? options_of(call) : nullptr;
  // Not where somebody took the weight away meanwhile.
  if (options != nullptr && entry.has(Form::plain)) {
    entry.hold(Py_NewRef(packed), Py_XNewRef(holder), Form::packed);
    Py_XSETREF(entry.packed_for, Py_NewRef(options));
  }
  Py_XDECREF(options);
  Py_XDECREF(holder);
  Py_XDECREF(packed);
}

bool are_its_options(PyObject* packed_for, const PackedCall& call) {
  if (call.what != Packs::conv2d) return PyTuple_GET_SIZE(packed_for) == 0;
  PyObject* options = options_of(call);
  const int equal = options == nullptr ? 0 : PyObject_RichCompareBool(packed_for, options, Py_EQ);
  Py_XDECREF(options);
  PyErr_Clear();
  return equal == 1;
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
  // The result of a weight in channels-last order is in that order, whatever the input's is.
  if (known->form == Form::plain && call.reorders && !tensor::is_channels_first(known->cast)) return false;
  const std::shared_ptr<Entry> entry = cache().entries.at({call.weight, to});  // comparing may let others run
  if (entry->form == Form::packed) return is_packed_for(*entry, call);
  PyObject* one_case = case_of(*entry, call);
  const Verdict verdict = verdict_on(one_case);
  Py_XDECREF(one_case);
  if (call.reorders && verdict == Verdict::none && entry->probed >= most_probed) return false;
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

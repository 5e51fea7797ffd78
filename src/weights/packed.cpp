#include "weights/packed.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <utility>

#include "weights/entry.hpp"

namespace habana_mp::weights {

namespace {

PackingOperators operators;
int assumed = -1;

// A weight is packed after so many uses in a row without a gradient and without a change.
constexpr std::uint32_t quiet_enough = 4;
// Below this many values the operator itself costs more than it spares.
constexpr std::int64_t worth_packing = 1 << 14;
// The packed call must be faster by this factor when it is measured.
constexpr double clearly = 1.1;

// Whether packing pays is measured once for each shape.
struct Shape {
  std::int64_t out;
  std::int64_t in;
  int rows;  // the number of binary digits
  bool operator==(const Shape&) const = default;
};
struct HashOfShape {
  std::size_t operator()(const Shape& shape) const noexcept {
    return (static_cast<std::size_t>(shape.out) * 1000003U + static_cast<std::size_t>(shape.in)) * 64U +
           static_cast<std::size_t>(shape.rows);
  }
};
using Verdicts = std::unordered_map<Shape, bool, HashOfShape>;
Verdicts& verdicts() {
  static auto* const all = new Verdicts;
  return *all;
}

// Of a matrix that is kept.
Shape shape_for(const Entry& entry, std::int64_t input_elements) {
  PyObject* sizes = PyTuple_GET_ITEM(entry.shape, 0);
  if (PyTuple_GET_SIZE(sizes) != 2) return {0, 0, 0};
  const std::int64_t out = PyLong_AsLongLong(PyTuple_GET_ITEM(sizes, 0));
  const std::int64_t in = PyLong_AsLongLong(PyTuple_GET_ITEM(sizes, 1));
  const auto rows = static_cast<std::uint64_t>(in == 0 ? 0 : input_elements / in);
  return {out, in, static_cast<int>(std::bit_width(rows))};
}

PyObject* call_plain(PyObject* input, PyObject* weight, PyObject* bias) {
  PyObject* const values[] = {input, weight, bias};
  return PyObject_Vectorcall(operators.plain, values, 3, nullptr);
}

PyObject* call_packed(PyObject* input, PyObject* packed, PyObject* bias) {
  static PyObject* const none = PyUnicode_InternFromString("none");
  static PyObject* const no_scalars = PyTuple_New(0);
  static PyObject* const no_algorithm = PyUnicode_InternFromString("");
  PyObject* const values[] = {input, packed, bias, none, no_scalars, no_algorithm};
  return PyObject_Vectorcall(operators.linear, values, 6, nullptr);
}

// In seconds; negative where the call fails.
template <typename Call>
double time_of(Call call) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  PyObject* result = call();
  const std::chrono::duration<double> taken = Clock::now() - begin;
  if (result == nullptr) return -1.0;
  Py_DECREF(result);
  return taken.count();
}

// The packed form of a kept cast, a new reference.
PyObject* pack(const Entry& entry) {
  PyObject* const values[] = {entry.cast, Py_None};
  return PyObject_Vectorcall(operators.pack, values, 2, nullptr);
}

// The shortest calls decide, of some made in turn: whatever else runs on this machine only makes a call longer.
bool pays(PyObject* input, PyObject* cast, PyObject* packed, PyObject* bias) {
  if (assumed >= 0) return assumed != 0;
  double plain = 1e9;
  double from_packed = 1e9;
  for (int i = 0; i < 5; ++i) {
    const double one = time_of([&] { return call_plain(input, cast, bias); });
    const double other = time_of([&] { return call_packed(input, packed, bias); });
    if (one < 0 || other < 0) return false;
    plain = std::min(plain, one);
    from_packed = std::min(from_packed, other);
  }
  return from_packed * clearly < plain;
}

// Packs the weight if that pays for this input.
void consider(Entry& entry, PyObject* input, PyObject* bias, const Shape& shape) {
  const auto known = verdicts().find(shape);
  if (known != verdicts().end() && !known->second) return;
  entry.busy = true;
  PyObject* cast = Py_NewRef(entry.cast);
  PyObject* packed = pack(entry);
  const bool worth = packed != nullptr && (known != verdicts().end() || pays(input, cast, packed, bias));
  PyErr_Clear();
  entry.busy = false;
  Py_DECREF(cast);
  verdicts()[shape] = worth;
  // Not where somebody took the trust away meanwhile, or the weight.
  if (worth && entry.has(Form::plain)) {
    entry.hold(Py_NewRef(packed), Form::packed);
  }
  Py_XDECREF(packed);
}

}  // namespace

void set_packing(const PackingOperators& wanted) noexcept {
  for (PyObject* one : {wanted.pack, wanted.linear, wanted.plain}) Py_XINCREF(one);
  const PackingOperators former = std::exchange(operators, wanted);
  for (PyObject* one : {former.pack, former.linear, former.plain}) Py_XDECREF(one);
}

void assume_that_packing_pays(int answer) noexcept {
  assumed = answer;
  verdicts().clear();
}

bool may_be_packed(PyObject* weight, Kind to, std::int64_t input_elements) noexcept {
  if (operators.linear == nullptr || to != Kind::bf16) return false;
  const Entry* entry = entry_of(weight, to);
  if (entry == nullptr || entry->cast == nullptr || entry->busy) return false;
  if (entry->form == Form::packed) return true;
  if (entry->quiet_uses < quiet_enough || entry->elements < worth_packing) return false;
  const auto known = verdicts().find(shape_for(*entry, input_elements));
  return known == verdicts().end() || known->second;
}

PyObject* linear(PyObject* input, PyObject* weight, PyObject* bias, Kind to) noexcept {
  const auto found = cache().entries.find({weight, to});
  if (found == cache().entries.end()) return nullptr;
  const std::shared_ptr<Entry> held = found->second;
  Entry& entry = *held;
  if (entry.cast == nullptr || !is_unchanged(entry, weight)) return nullptr;
  if (entry.form == Form::plain) {
    const Shape shape = shape_for(entry, tensor::count_elements(input));
    if (shape.out == 0 || shape.rows == 0) return nullptr;
    consider(entry, input, bias, shape);
    if (!entry.has(Form::packed) || !is_unchanged(entry, weight)) return nullptr;
  }
  PyObject* packed = Py_NewRef(entry.cast);
  PyObject* result = call_packed(input, packed, bias);
  Py_DECREF(packed);
  if (result == nullptr) {
    // The ordinary call will say what is wrong.
    PyErr_Clear();
    entry.drop();
    return nullptr;
  }
  ++counts.hits;
  return result;
}

}  // namespace habana_mp::weights

#include "accel/products/library.hpp"

#include <array>
#include <iterator>
#include <utility>

#include "accel/products/image_order.hpp"
#include "errors.hpp"
#include "host/casts_inside.hpp"
#include "host/modes.hpp"
#include "host/torch_api.hpp"
#include "tensor/cast_memory.hpp"

namespace habana_mp::accel {

namespace {

NeverDestroyed<std::array<PackingOperators, packs_count>> operators;

// Holds the operator during the call: other code may run and exchange the operators.
Owned call_operator(const Owned& one, PyObject* const* values, std::size_t count) {
  if (!one) return nullptr;
  const Owned held = Owned::borrowed(one.get());
  return Owned(PyObject_Vectorcall(held.get(), values, count, nullptr));
}

Owned call_packed_as_it_lies(const WeightCall& call, PyObject* packed) {
  static PyObject* const none = interned("none");
  static PyObject* const no_scalars = checked(PyTuple_New(0));
  static PyObject* const no_algorithm = interned("");
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

}  // namespace

bool is_in_use() noexcept { return host::autocast_is_off() && host::onednn_is_enabled(); }

void set_packing(Packs what, PackingOperators wanted) noexcept {
  const PackingOperators former = std::exchange((*operators)[static_cast<std::size_t>(what)], std::move(wanted));
}

const PackingOperators& operators_of(Packs what) noexcept { return (*operators)[static_cast<std::size_t>(what)]; }

bool library_packs(const WeightCall& call) noexcept { return static_cast<bool>(operators_of(call.what).call); }

Owned pack(PyObject* cast, const WeightCall& call) {
  const Owned& pack_it = operators_of(call.what).pack;
  if (call.what == Packs::linear) {
    PyObject* const values[] = {cast, Py_None};
    return call_operator(pack_it, values, 2);
  }
  const Owned sizes(PyObject_CallMethod(call.input, "size", nullptr));
  if (!sizes) return nullptr;
  PyObject* const values[] = {cast, call.options[1], call.options[0], call.options[2], call.options[3], sizes.get()};
  return call_operator(pack_it, values, 6);
}

Owned call_packed(const WeightCall& call, PyObject* packed) {
  if (!call.reorders) return call_packed_as_it_lies(call, packed);
  const tensor::Transient input(channels_last_transient(call.input, Kind::bf16), true);
  if (!input) return nullptr;
  WeightCall reordered = call;
  reordered.input = input.get();
  const Owned made = call_packed_as_it_lies(reordered, packed);
  return made ? channels_first(made.get(), Kind::bf16) : nullptr;
}

Owned call_plain(const WeightCall& call) {
  const Owned& plain = operators_of(call.what).plain;
  if (call.what == Packs::addmm) {
    PyObject* const values[] = {call.bias, call.input, call.weight};
    return call_operator(plain, values, std::size(values));
  }
  PyObject* values[3 + conv_options] = {call.input, call.weight, call.bias};
  std::size_t count = call.what == Packs::mm || call.what == Packs::matmul ? 2 : 3;
  if (call.what == Packs::conv2d) {
    for (Py_ssize_t i = 0; i < conv_options; ++i) values[count++] = call.options[i];
  }
  return call_operator(plain, values, count);
}

}  // namespace habana_mp::accel

// Kept casts of linear layers' weights in the layout of torch's CPU library (oneDNN), which spares it to bring them
// there in every call. Such a weight serves where nothing is recorded; the results are the same bits.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>

#include "tensor/reader.hpp"

namespace habana_mp::weights {

// Private operators of torch; null where it has none, or where they are not to be used.
struct PackingOperators {
  PyObject* pack = nullptr;    // (weight, None): the packed weight
  PyObject* linear = nullptr;  // (input, packed weight, bias, "none", [], "")
  PyObject* plain = nullptr;   // F.linear, untouched
};
// Keeps references. What is packed by then stays packed.
void set_packing(const PackingOperators& operators) noexcept;

// For tests: what a measurement would say, 1 or 0; -1 to measure.
void assume_that_packing_pays(int answer) noexcept;

// Is it worth to prepare a call of `linear`: is the weight packed, or does it pay to pack it for so many values of
// input?
bool may_be_packed(PyObject* weight, tensor::Kind to, std::int64_t input_elements) noexcept;

// F.linear from the packed weight. The other arguments are in its precision already, the bias may be None. A new
// reference; null, without an exception, where the call is to be made the ordinary way.
PyObject* linear(PyObject* input, PyObject* weight, PyObject* bias, tensor::Kind to) noexcept;

}  // namespace habana_mp::weights

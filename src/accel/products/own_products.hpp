// Linear layers and other products that our own kernels compute. The kernels read the weight as it is stored in memory:
// a cached cast, or a weight that is in lower precision itself. Only for this directory.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "engine/products.hpp"
#include "host/reader.hpp"
#include "owned.hpp"

namespace habana_mp::accel {

// A product of rows and a matrix. All tensors are in one lower precision; with `float32_result` the bias may be in
// float32.
struct ProductCall {
  PyObject* input;
  PyObject* weight;
  PyObject* bias = Py_None;
  bool is_linear = false;     // the weight is [outer][inner], as for F.linear, not [inner][outer]
  bool wants_matrix = false;  // the input must have two dimensions
  bool float32_result = false;
};

// Returns the product. Returns null if our kernels do not compute such a call, or are slower there; an exception is set
// only for an interrupt.
Owned multiply(ProductCall call, Kind kind);

}  // namespace habana_mp::accel

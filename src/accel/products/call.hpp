// A call of a product or a convolution whose weight was cached, or is in the lower precision itself.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "weights/packs.hpp"

namespace habana_mp::accel {

using weights::Packs;
using weights::packs_count;

// A call as it was written.
struct WeightCall {
  Packs what = Packs::nothing;
  PyObject* input = nullptr;
  PyObject* weight = nullptr;
  PyObject* bias = nullptr;            // may be None
  PyObject* const* options = nullptr;  // for conv2d: stride, padding, dilation, groups
  // For conv2d, whose packed form works in channels-last order: true if the input is in channels-first order, so that
  // the input and the result are reordered. Used only if that gives the same bits.
  bool reorders = false;

  [[nodiscard]] bool is_product() const { return what != Packs::conv2d; }
};

}  // namespace habana_mp::accel

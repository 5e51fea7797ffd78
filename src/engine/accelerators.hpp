// The functions that accelerators (src/accel) add to a call. Each accelerator sets its own when the module is loaded.
#pragma once

#include "engine/arguments.hpp"
#include "engine/rule.hpp"
#include "owned.hpp"

namespace habana_mp::engine {

struct Accelerators {
  // Returns a product that autograd does not track, computed by our own kernels (accel/products). Its operands are in
  // this lower precision; so are the bias and the result, or these are in float32. Null if it must be computed in
  // another way; an exception is then set only by an interrupt.
  Owned (*multiply)(ProductForm form, const Arguments& arguments, Kind kind, bool float32_result) = nullptr;
};
extern Accelerators accelerators;

}  // namespace habana_mp::engine

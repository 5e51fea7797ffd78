// Checks whether the values of a tensor are finite.
#pragma once

#include <cstdint>

#include "owned.hpp"
#include "rules/kind.hpp"

namespace habana_mp::watch {

// The worst value, in this order. `unknown`: the values cannot be read here, such as those on another device.
enum class Finite : std::uint8_t { numbers, infinities, nans, unknown };

struct Magnitude {
  Finite state = Finite::numbers;
  Kind kind = Kind::other;
  float largest = 0;  // the largest magnitude of numbers that were read, if there are numbers only
};

// Reads the values of a tensor; all of them with `whole`, else samples of a large one. Other objects and tensors
// without floating-point values have no bad value.
Magnitude magnitude_of(PyObject* tensor, bool whole) noexcept;

}  // namespace habana_mp::watch

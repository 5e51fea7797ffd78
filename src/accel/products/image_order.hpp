// Converts batches of 16-bit images on the CPU between channels-last order and channels-first, the ordinary order. For
// calls that autograd does not track.
#pragma once

#include "host/reader.hpp"
#include "owned.hpp"

namespace habana_mp::accel {

// True if this plain tensor is a batch of images in channels-last order, and in that order only.
bool is_channels_last(PyObject* tensor) noexcept;

// True if this plain tensor is a batch of images in channels-first order, with the strides that torch gives a new
// tensor.
bool is_channels_first(PyObject* tensor) noexcept;

// Return the same images in the other order, or null if that is not possible; an exception is set only for an
// interrupt. `channels_last_transient` makes a temporary input of an operation: the caller passes it to `give_back`.
Owned channels_last_transient(PyObject* images, Kind kind);
Owned channels_first(PyObject* images, Kind kind);

}  // namespace habana_mp::accel

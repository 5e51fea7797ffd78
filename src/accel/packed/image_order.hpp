// Batches of images of 16-bit values on the CPU, in channels-last order and in channels-first, the ordinary one: from
// one to the other, where nothing is recorded.
#pragma once

#include "host/reader.hpp"
#include "owned.hpp"

namespace habana_mp::accel {

// Is this plain tensor a batch of images in channels-last order, and in that order only?
bool is_channels_last(PyObject* tensor) noexcept;

// Is it one in channels-first order, with the strides that torch gives to a new one?
bool is_channels_first(PyObject* tensor) noexcept;

// The same images in the other order; null, without an exception but an interrupt's, where that cannot be had. What is
// made for a while, for an operation's input, goes to `give_back`.
Owned channels_last_transient(PyObject* images, Kind kind);
Owned channels_first(PyObject* images, Kind kind);

}  // namespace habana_mp::accel

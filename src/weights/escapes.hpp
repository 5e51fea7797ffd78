// Watches the torch functions through which code can write to a weight without changing its version.
#pragma once

#include "owned.hpp"

namespace habana_mp::weights {

// Tuples of prefixes of module names: modules whose calls are harmless, and modules that act for their own callers.
struct Callers {
  Owned harmless;
  Owned passing_on;
};

// Torch objects, borrowed, and the callers that may use them.
struct MemoryMethods {
  PyObject* untyped_storage;          // methods of Tensor
  PyObject* data_ptr;                 //
  PyObject* const_data_ptr;           // null if this torch lacks it
  PyObject* apply;                    // these write without incrementing the version counter
  PyObject* map;                      //
  PyObject* map2;                     //
  PyObject* set;                      // uses the memory of its arguments
  PyObject* resize;                   // these give the same values another layout
  PyObject* resize_as;                //
  PyObject* unsafe_chunk;             // these make tensors that share the memory but not the version counter
  PyObject* unsafe_split;             //
  PyObject* unsafe_split_with_sizes;  //
  PyObject* lazy_clone;               // null if this torch lacks it
  PyObject* storage_data_ptr;         // a method of a storage
  Callers of_pointers;                // callers that only compare the pointers
  Callers of_arrays;                  // callers that compute with an array and drop it
};

// Start and stop the watch of two methods of Tensor. The watch starts before the first target is patched, and stops
// when no target is patched any more. A list may also name `view`. If the lists apply, `numpy` of a bfloat16 tensor
// returns float32.
void watch_view_and_numpy(bool (*lists_apply)());
void stop_watching_view_and_numpy() noexcept;

// Watches DLPack's C exchange API as soon as torch has it. An older torch gets it from another library.
void watch_exchange();

// Returns false with a Python exception set, and changes nothing, if one of the methods is not as expected.
bool watch_escapes(MemoryMethods methods);
void stop_watching_escapes() noexcept;

// Reports that a tensor's memory may be written to from now on, unseen or not (see memory_escapes).
void tensor_escapes(PyObject* tensor, bool unseen) noexcept;
// Reports the arguments of a function that writes unseen, and what lists and dicts among them hold, since torch accepts
// these. If an argument may hold any tensor, all weights are reported.
void arguments_escape(PyObject* const* values, Py_ssize_t count) noexcept;

}  // namespace habana_mp::weights

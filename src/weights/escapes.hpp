// Watching the ways by which a weight's memory gets into hands of which torch tells nobody.
#pragma once

#include "owned.hpp"

namespace habana_mp::weights {

// Tuples of what the names of modules begin with: those that do no harm with what they ask for, and those that ask for
// whoever called them.
struct Callers {
  Owned harmless;
  Owned passing_on;
};

// Objects of torch, borrowed, and who may call them.
struct MemoryMethods {
  PyObject* untyped_storage;          // methods of Tensor
  PyObject* data_ptr;                 //
  PyObject* const_data_ptr;           // null where this torch lacks it
  PyObject* apply;                    // these write without counting the version up
  PyObject* map;                      //
  PyObject* map2;                     //
  PyObject* set;                      // takes the memory of its arguments
  PyObject* resize;                   // these lay out the same values in another order
  PyObject* resize_as;                //
  PyObject* unsafe_chunk;             // these make tensors that share the memory and not the version
  PyObject* unsafe_split;             //
  PyObject* unsafe_split_with_sizes;  //
  PyObject* lazy_clone;               // null where this torch lacks it
  PyObject* storage_data_ptr;         // a method of a storage
  Callers of_pointers;                // take them to compare them
  Callers of_arrays;                  // compute with an array and drop it
};

// Two methods of Tensor that are watched before anything is covered, and until nothing is: `view`, which a list may
// name too, and `numpy`, which takes float32 of what is in bfloat16, where the lists speak.
void watch_view_and_numpy(bool (*lists_speak)());
void stop_watching_view_and_numpy() noexcept;

// DLPack's exchange API of C, as soon as torch has one: an older torch gets it of another library.
void watch_exchange();
// True if there is no table, or one that may be written to.
bool may_watch_exchange();

// False with a Python exception set when one of them is not what it should be; nothing has changed then.
bool watch_escapes(MemoryMethods methods);
void stop_watching_escapes() noexcept;

// A tensor's memory may be written to from now on, unseen or not (see memory_escapes).
void tensor_escapes(PyObject* tensor, bool unseen) noexcept;
// What a function is given that writes unseen: of lists too, and of lists in them, as torch takes them.
void arguments_escape(PyObject* const* values, Py_ssize_t count) noexcept;

}  // namespace habana_mp::weights

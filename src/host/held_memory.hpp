// Keeping the memory of tensors while other threads run.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <algorithm>
#include <initializer_list>
#include <utility>
#include <vector>

#include "gil.hpp"

namespace habana_mp::host {

// Finds torch's functions for it. To be called after bind_inside.
void bind_held_memory();

// Holds a plain tensor's memory: while this lives the memory stays valid, whatever others do to the tensor or to its
// storage (`.data = ...`, set_, a resize of the storage in place). Made and destroyed under the GIL. Making it runs no
// Python code, so an address that was read before is still right. Destroying it may run some.
class HeldMemory {
 public:
  struct Node;

  explicit HeldMemory(PyObject* tensor) noexcept;
  HeldMemory(HeldMemory&& other) noexcept : node_(std::exchange(other.node_, nullptr)) {}
  HeldMemory(const HeldMemory&) = delete;
  HeldMemory& operator=(const HeldMemory&) = delete;
  HeldMemory& operator=(HeldMemory&&) = delete;
  ~HeldMemory();

  // False where the memory cannot be held: then the GIL must be kept while it is used.
  explicit operator bool() const noexcept { return node_ != nullptr; }

  // The storage that is held; null where none is.
  [[nodiscard]] const char* storage() const noexcept;

 private:
  Node* node_;
};

// Runs `work`, which uses the memory of these tensors: without the GIL where their memory can be held.
template <class Work>
void without_gil_on(std::initializer_list<PyObject*> tensors, const Work& work) {
  std::vector<HeldMemory> held;
  held.reserve(tensors.size());
  for (PyObject* tensor : tensors) held.emplace_back(tensor);
  if (std::all_of(held.begin(), held.end(), [](const HeldMemory& one) { return static_cast<bool>(one); })) {
    without_gil(work);
  } else {
    work();
  }
}

// Ends in a forked child what threads that it does not have held. To be called under the GIL.
void forget_memory_of_other_threads() noexcept;

// While this lives an allocation of a Python object runs no garbage collector: before Python 3.12 it may, and with it
// finalizers. To be used for some instructions, under the GIL.
class NoCollection {
 public:
#if PY_VERSION_HEX < 0x030C0000
  NoCollection() noexcept : was_enabled_(PyGC_Disable() != 0) {}
  ~NoCollection() {
    if (was_enabled_) PyGC_Enable();
  }

 private:
  bool was_enabled_;

 public:
#else
  NoCollection() noexcept = default;
  ~NoCollection() {}  // NOLINT(modernize-use-equals-default): a trivial one would leave an unused variable
#endif
  NoCollection(const NoCollection&) = delete;
  NoCollection& operator=(const NoCollection&) = delete;
};

}  // namespace habana_mp::host

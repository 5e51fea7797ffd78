// Keeps the memory of tensors valid while other threads run.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <algorithm>
#include <initializer_list>
#include <utility>
#include <vector>

#include "gil.hpp"

namespace habana_mp::host {

// Finds the torch functions that this file needs. Call it after bind_inside.
void bind_held_memory();

// Holds a plain tensor's memory: it stays valid during the lifetime of this object, whatever other code does to the
// tensor (`.data = ...`, set_). Create and destroy it under the GIL. The constructor runs no Python code, so an address
// that was read before it is still valid. The destructor may run Python code.
class HeldMemory {
 public:
  struct Node;

  explicit HeldMemory(PyObject* tensor);
  HeldMemory(HeldMemory&& other) noexcept : node_(std::exchange(other.node_, nullptr)) {}
  HeldMemory(const HeldMemory&) = delete;
  HeldMemory& operator=(const HeldMemory&) = delete;
  HeldMemory& operator=(HeldMemory&&) = delete;
  ~HeldMemory();

  // False if the memory cannot be held. The caller must then keep the GIL while it uses the memory.
  explicit operator bool() const noexcept { return node_ != nullptr; }

  // Returns the held storage (an at::StorageImpl), or null if the memory cannot be held.
  [[nodiscard]] const char* storage() const noexcept;

 private:
  Node* node_;
};

// Runs `work`, which uses the memory of these tensors. Releases the GIL if all their memory can be held. Throws
// std::bad_alloc before `work` if memory runs out.
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

// In a forked child, releases the memory that threads of the parent held, which the child does not have. Call it under
// the GIL.
void forget_memory_of_other_threads() noexcept;

// During its lifetime no allocation of a Python object runs the garbage collector, which may call finalizers. Before
// Python 3.12 any allocation may run it. Use this for a few instructions, under the GIL.
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

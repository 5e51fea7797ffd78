// Where the memory of casts comes from: from torch's allocator, or from accelerators (src/accel) that are there. Each
// fills in what it does as the module is loaded; without it the cast is made the ordinary way.
#pragma once

#include <cstdint>
#include <utility>

#include "host/inside.hpp"
#include "owned.hpp"

namespace habana_mp::tensor {

struct CastResult;

struct CastMemory {
  // Memory that is used again by the next call (accel/buffers).
  Owned (*cast_transient)(PyObject* tensor, Kind from, Kind to, CastResult& seen, bool& transient) = nullptr;
  bool (*has_uneven_rows)(PyObject* tensor, bool heeds_single_elements) noexcept = nullptr;
  Owned (*cast_in_rows)(PyObject* tensor, Kind from, Kind to, CastResult& seen) = nullptr;
  Owned (*borrow)(const DLTensor& wanted, Kind kind) noexcept = nullptr;
  void (*give_back)(PyObject* cast) noexcept = nullptr;
  void (*forget)() noexcept = nullptr;
  // Large blocks (accel/blocks).
  bool (*is_block)(std::uint64_t bytes) noexcept = nullptr;
  Owned (*tensor_in_block)(const host::Geometry& like, Kind kind, void*& values) noexcept = nullptr;
};
extern CastMemory cast_memory;

// Is so much memory better taken as a block of its own?
inline bool is_block(std::uint64_t bytes) noexcept {
  return cast_memory.is_block != nullptr && cast_memory.is_block(bytes);
}

// Do the rows of this tensor of more than two dimensions on the CPU not lie at one distance from each other? Torch
// heeds the strides of dimensions of one element where it multiplies, but not where it adds a bias in the same
// operation. Only asked where something can be done about it.
inline bool has_uneven_rows(PyObject* tensor, bool heeds_single_elements) noexcept {
  return cast_memory.has_uneven_rows != nullptr && cast_memory.has_uneven_rows(tensor, heeds_single_elements);
}

// Memory for now of this kind that lies as this view: it goes to `give_back`. Null where there is none.
inline Owned borrow(const DLTensor& wanted, Kind kind) noexcept {
  return cast_memory.borrow == nullptr ? nullptr : cast_memory.borrow(wanted, kind);
}

// A tensor that goes to `give_back` when the scope ends, by an exception too, if `transient` is true.
class Transient {
 public:
  Transient(Owned tensor, bool transient) noexcept : tensor_(std::move(tensor)), transient_(transient) {}
  ~Transient();
  Transient(const Transient&) = delete;
  Transient& operator=(const Transient&) = delete;

  [[nodiscard]] PyObject* get() const noexcept { return tensor_.get(); }
  [[nodiscard]] Owned take() noexcept { return std::move(tensor_); }
  explicit operator bool() const noexcept { return static_cast<bool>(tensor_); }

 private:
  Owned tensor_;
  bool transient_;
};

// Takes the reference of what was made for now. The tensor is used again if nobody else holds it or its memory.
inline void give_back(PyObject* cast) noexcept {
  if (cast_memory.give_back == nullptr) {
    const Owned gone(cast);
  } else {
    cast_memory.give_back(cast);
  }
}

inline Transient::~Transient() {
  if (transient_ && tensor_) give_back(tensor_.release());
}

}  // namespace habana_mp::tensor

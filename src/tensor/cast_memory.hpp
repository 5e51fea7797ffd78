// The memory of casts: it comes from torch's allocator, or from the accelerators (src/accel) of this build. Each
// accelerator sets its functions when the module is loaded. Without it casts are made in the ordinary way.
#pragma once

#include <cstdint>
#include <utility>

#include "host/inside.hpp"
#include "owned.hpp"

namespace habana_mp::tensor {

struct CastResult;

struct CastMemory {
  // Memory that the next call reuses (accel/buffers).
  Owned (*cast_transient)(PyObject* tensor, Kind from, Kind to, CastResult& seen, bool& transient) = nullptr;
  Owned (*copy_in_rows)(PyObject* tensor, Kind kind) = nullptr;
  void (*give_back)(PyObject* cast) noexcept = nullptr;
  void (*forget)() noexcept = nullptr;
  // Large blocks (accel/blocks).
  bool (*is_block)(std::uint64_t bytes) noexcept = nullptr;
  Owned (*tensor_in_block)(const host::Geometry& like, Kind kind, void*& values) = nullptr;
};
extern CastMemory cast_memory;

// True if this much memory should be a block of its own.
inline bool is_block(std::uint64_t bytes) noexcept {
  return cast_memory.is_block != nullptr && cast_memory.is_block(bytes);
}

// A tensor that is passed to `give_back` at the end of the scope, also after an exception, if `transient` is true.
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

// Takes over the reference to a temporary tensor. The tensor is reused if nothing else holds it or its memory.
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

// Views the memory of plain tensors, and makes new tensors whose values the core fills. Uses the DLPack exchange API
// or, before torch 2.10, torch's C functions for compiled models.
#pragma once

#include "errors.hpp"
#include "host/inside.hpp"
#include "host/reader.hpp"
#include "owned.hpp"

namespace habana_mp::host {

namespace detail {
extern bool has_functions;  // those of torch before 2.10
bool view_by_functions(PyObject* tensor, DLTensor& view) noexcept;

inline Kind kind_of_dlpack(DLDataType type) noexcept {
  if (type.code == kDLFloat && type.lanes == 1) {
    if (type.bits == 32) return Kind::f32;
    if (type.bits == 16) return Kind::f16;
    if (type.bits == 64) return Kind::wide;
  }
  if (type.code == kDLBfloat && type.bits == 16 && type.lanes == 1) return Kind::bf16;
  return type.code == kDLComplex ? Kind::wide : Kind::other;
}
}  // namespace detail

// Tests torch's exchange table, and drops it if the test fails. Call it after bind_torch.
void bind_exchange();

// Finds the functions of an older torch if there is no exchange table. Call it when `inside` holds the dispatch keys.
void bind_views();

// True if tensors can be viewed. Otherwise the functions below return false or null.
inline bool can_view() noexcept { return api.exchange != nullptr || detail::has_functions; }

// True if tensors that are not on the CPU can be viewed.
inline bool can_view_on_devices() noexcept { return api.exchange != nullptr; }

// Views a plain tensor's memory on any device. `data` is null for an empty tensor. The negative bit is ignored. False
// if the memory cannot be viewed.
inline bool view_of(PyObject* tensor, DLTensor& view) noexcept {
  if (inside.meta != 0 && (keys_of(tensor) & inside.meta) != 0) return false;  // torch's error takes milliseconds
  if (api.exchange == nullptr) return detail::has_functions && detail::view_by_functions(tensor, view);
  if (api.exchange->dltensor_from_py_object_no_sync(tensor, &view) == 0) [[likely]]
    return true;
  clear_error();
  return false;
}

// The same, but false if the tensor is not on the CPU or is empty.
inline bool view_on_cpu(PyObject* tensor, DLTensor& view) noexcept {
  return !is_plain_on_accelerator(tensor) && view_of(tensor, view) && view.device.device_type == kDLCPU &&
         view.data != nullptr;
}

// The same for any object: false too if it is no plain tensor.
inline bool view_plain_on_cpu(PyObject* object, DLTensor& view) noexcept {
  return is_plain_tensor(object) && view_on_cpu(object, view);
}

// True if the strides are those of a new tensor, also in dimensions of one element: torch's cast keeps their strides,
// and convolutions depend on them.
bool is_contiguous(const DLTensor& view) noexcept;

// True if the values have this floating kind.
inline bool is_of_kind(const DLTensor& view, Kind kind) noexcept { return detail::kind_of_dlpack(view.dtype) == kind; }

// Returns the number of values.
inline std::int64_t count_in(const DLTensor& view) noexcept {
  std::int64_t count = 1;
  for (std::int32_t i = 0; i < view.ndim; ++i) count *= view.shape[i];
  return count;
}

// Returns a new contiguous tensor of this kind with the sizes of `like`, which is on the CPU, and sets `values` to its
// memory. Null without an exception on failure.
Owned allocate_like(const DLTensor& like, Kind kind, void*& values);

// Returns the DLPack type of a kind.
DLDataType dlpack_type(Kind kind) noexcept;

}  // namespace habana_mp::host

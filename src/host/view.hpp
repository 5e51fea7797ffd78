// Where a plain tensor's values lie, and new tensors whose values are filled from outside: through the DLPack exchange
// API, and where torch is older than that (before 2.10) through its C functions for compiled models.
#pragma once

#include "errors.hpp"
#include "host/reader.hpp"
#include "owned.hpp"

namespace habana_mp::host {

namespace detail {
extern bool has_functions;  // those of an older torch
bool view_by_functions(PyObject* tensor, DLTensor& view) noexcept;
}  // namespace detail

// Tries torch's table, and does without where it is not what it should be. To be called after bind_torch, before
// bind_reader.
void bind_exchange();

// Finds the way of an older torch, where there is no other. To be called when `inside` tells of dispatch keys.
void bind_views();

// Is there a way? Without one the functions below answer false and null.
inline bool can_view() noexcept { return api.exchange != nullptr || detail::has_functions; }

// A plain tensor's memory, on whatever device, null where it is empty. A negative view answers with its bit ignored.
// False where there is none to be seen.
inline bool view_of(PyObject* tensor, DLTensor& view) noexcept {
  if (api.exchange == nullptr) return detail::has_functions && detail::view_by_functions(tensor, view);
  if (api.exchange->dltensor_from_py_object_no_sync(tensor, &view) == 0) [[likely]]
    return true;
  clear_error();
  return false;
}

// The same; false where it is not on the CPU, or empty.
inline bool view_on_cpu(PyObject* tensor, DLTensor& view) noexcept {
  return view_of(tensor, view) && view.device.device_type == kDLCPU && view.data != nullptr;
}

// Are its strides those of a new tensor? Of dimensions of one element too: torch's cast keeps them, and a convolution
// heeds them.
bool is_contiguous(const DLTensor& view) noexcept;

// True if its values have this floating kind.
inline bool is_of_kind(const DLTensor& view, Kind kind) noexcept { return detail::kind_of_dlpack(view.dtype) == kind; }

// The number of its values.
inline std::int64_t count_in(const DLTensor& view) noexcept {
  std::int64_t count = 1;
  for (std::int32_t i = 0; i < view.ndim; ++i) count *= view.shape[i];
  return count;
}

// A new contiguous tensor of this kind, with the sizes of another one on the CPU, and where its values go. Null,
// without an exception, where that is not possible.
Owned allocate_like(const DLTensor& like, Kind kind, void*& values);

// The type as DLPack names it.
DLDataType dlpack_type(Kind kind) noexcept;

}  // namespace habana_mp::host

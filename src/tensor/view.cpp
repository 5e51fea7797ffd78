#include "tensor/view.hpp"

#include <array>
#include <vector>

#include "tensor/inside.hpp"
#include "tensor/torch_library.hpp"

namespace habana_mp::tensor {

bool detail::has_functions = false;

namespace {

// What generated code of AOTInductor calls: C functions that answer 0 when all went well. A handle is an at::Tensor*.
using Handle = void*;
struct Functions {
  int (*get_data_ptr)(Handle, void**) = nullptr;
  int (*get_dim)(Handle, std::int64_t*) = nullptr;
  int (*get_sizes)(Handle, std::int64_t**) = nullptr;
  int (*get_strides)(Handle, std::int64_t**) = nullptr;
  int (*empty_strided)(std::int64_t dimensions, const std::int64_t* sizes, const std::int64_t* strides,
                       std::int32_t scalar_type, std::int32_t device_type, std::int32_t device_index,
                       Handle* made) = nullptr;
  int (*delete_tensor)(Handle) = nullptr;
  PyObject* (*wrap)(Handle) = nullptr;  // THPVariable_Wrap; by reference or by value, which is passed alike

  [[nodiscard]] bool are_complete() const {
    return get_data_ptr != nullptr && get_dim != nullptr && get_sizes != nullptr && get_strides != nullptr &&
           empty_strided != nullptr && delete_tensor != nullptr && wrap != nullptr;
  }
};
Functions functions;

constexpr std::int32_t cpu = 0;

// By c10::ScalarType, whose numbers are part of torch's serialization format.
constexpr std::array<DLDataType, 16> types = {{{kDLUInt, 8, 1},
                                               {kDLInt, 8, 1},
                                               {kDLInt, 16, 1},
                                               {kDLInt, 32, 1},
                                               {kDLInt, 64, 1},
                                               {kDLFloat, 16, 1},
                                               {kDLFloat, 32, 1},
                                               {kDLFloat, 64, 1},
                                               {kDLComplex, 32, 1},
                                               {kDLComplex, 64, 1},
                                               {kDLComplex, 128, 1},
                                               {kDLBool, 8, 1},
                                               {},
                                               {},
                                               {},
                                               {kDLBfloat, 16, 1}}};

// A dense tensor on the CPU, whose sizes, strides and memory can be asked for without an exception of C++.
bool is_dense_on_cpu(PyObject* tensor) noexcept {
  const std::uint64_t keys = keys_of(tensor);
  return (keys & inside.least) == inside.least && (keys & ~(inside.plain | inside.negative)) == 0;
}

std::int32_t scalar_type_of(Kind kind) noexcept {
  for (std::size_t i = 0; i < detail::kind_of_scalar_type.size(); ++i) {
    if (detail::kind_of_scalar_type[i] == kind) return static_cast<std::int32_t>(i);
  }
  return -1;
}

PyObject* allocate_by_functions(const DLTensor& like, Kind kind, void*& values) {
  std::vector<std::int64_t> strides(static_cast<std::size_t>(like.ndim));
  std::int64_t stride = 1;
  for (std::size_t i = strides.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= like.shape[i] == 0 ? 1 : like.shape[i];
  }
  Handle made = nullptr;
  if (functions.empty_strided(like.ndim, like.shape, strides.data(), scalar_type_of(kind), cpu, 0, &made) != 0) {
    return nullptr;
  }
  PyObject* result = functions.get_data_ptr(made, &values) == 0 ? functions.wrap(made) : nullptr;
  functions.delete_tensor(made);
  if (result == nullptr) PyErr_Clear();
  return result;
}

void ignore_error(void*, const char*, const char*) {}

PyObject* allocate_by_exchange(const DLTensor& like, Kind kind, void*& values) {
  DLTensor prototype = like;
  prototype.data = nullptr;
  prototype.dtype = dlpack_type(kind);
  prototype.strides = nullptr;
  prototype.byte_offset = 0;
  DLManagedTensorVersioned* made = nullptr;
  void* result = nullptr;
  if (api.exchange->managed_tensor_allocator(&prototype, &made, nullptr, ignore_error) != 0 || made == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  values = static_cast<char*>(made->dl_tensor.data) + made->dl_tensor.byte_offset;
  if (api.exchange->managed_tensor_to_py_object_no_sync(made, &result) != 0) PyErr_Clear();
  return static_cast<PyObject*>(result);
}

}  // namespace

bool detail::view_by_functions(PyObject* tensor, DLTensor& view) noexcept {
  if (!is_dense_on_cpu(tensor)) return false;
  const auto type = load<std::uint16_t>(detail::implementation_of(tensor), detail::layout.dtype);
  if (type >= types.size() || types[type].bits == 0) return false;
  // The Python object holds an at::Tensor, which holds nothing but the implementation.
  const Handle handle = reinterpret_cast<char*>(tensor) + detail::layout.implementation;
  std::int64_t dimensions = 0;
  view = {};
  view.device.device_type = kDLCPU;
  view.dtype = types[type];
  if (functions.get_dim(handle, &dimensions) != 0 || functions.get_sizes(handle, &view.shape) != 0 ||
      functions.get_strides(handle, &view.strides) != 0 || functions.get_data_ptr(handle, &view.data) != 0) {
    return false;
  }
  view.ndim = static_cast<std::int32_t>(dimensions);
  return true;
}

void bind_views() noexcept {
  if (api.exchange != nullptr) return;
  const TorchLibrary cpu_library("libtorch_cpu.so");
  cpu_library.find("aoti_torch_get_data_ptr", functions.get_data_ptr);
  cpu_library.find("aoti_torch_get_dim", functions.get_dim);
  cpu_library.find("aoti_torch_get_sizes", functions.get_sizes);
  cpu_library.find("aoti_torch_get_strides", functions.get_strides);
  cpu_library.find("aoti_torch_empty_strided", functions.empty_strided);
  cpu_library.find("aoti_torch_delete_tensor_object", functions.delete_tensor);
  const TorchLibrary python_library("libtorch_python.so");
  for (const char* name : {"_Z16THPVariable_WrapN2at10TensorBaseE", "_Z16THPVariable_WrapRKN2at10TensorBaseE"}) {
    if (functions.wrap == nullptr) python_library.find(name, functions.wrap);
  }
  detail::has_functions = functions.are_complete();
}

bool is_contiguous(const DLTensor& view) noexcept {
  if (view.strides == nullptr) return true;
  std::int64_t expected = 1;
  for (std::int32_t i = view.ndim - 1; i >= 0; --i) {
    if (view.strides[i] != expected) return false;
    expected *= view.shape[i];
  }
  return true;
}

PyObject* allocate_like(const DLTensor& like, Kind kind, void*& values) {
  if (!can_view()) return nullptr;
  return api.exchange != nullptr ? allocate_by_exchange(like, kind, values) : allocate_by_functions(like, kind, values);
}

DLDataType dlpack_type(Kind kind) noexcept {
  switch (kind) {
    case Kind::bf16:
      return {kDLBfloat, 16, 1};
    case Kind::f16:
      return {kDLFloat, 16, 1};
    default:
      return {kDLFloat, 32, 1};
  }
}

}  // namespace habana_mp::tensor

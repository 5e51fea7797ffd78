#include "host/view.hpp"

#include <array>
#include <vector>

#include "errors.hpp"
#include "host/finding.hpp"
#include "host/inside.hpp"
#include "host/ledger.hpp"
#include "host/symbols.hpp"

namespace habana_mp::host {

bool detail::has_functions = false;

namespace {

Assumption exchange_api{
    "torch.dlpack-exchange",
    "torch's table of DLPack's exchange API (torch >= 2.10) tells where a tensor's values lie, and makes tensors",
    "its version; where the values of a sample lie, its sizes and strides; a tensor that is made and filled",
    "an older torch's C functions for compiled models serve"};

Assumption compiled_model_functions{
    "torch.aoti-functions",
    "C functions for compiled models (aoti_torch_*) tell the same and make tensors, where torch is older than 2.10",
    "what they take, by torch's header in releases that are not known; a sample's values, sizes and strides; a tensor "
    "that is made and filled",
    "nothing looks at where tensors lie: torch makes all casts, nothing is kept of weights"};

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

Owned allocate_by_functions(const DLTensor& like, Kind kind, void*& values) {
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
  Owned result(functions.get_data_ptr(made, &values) == 0 ? functions.wrap(made) : nullptr);
  functions.delete_tensor(made);
  if (!result) clear_error();
  return result;
}

void ignore_error(void*, const char*, const char*) {}

Owned allocate_by_exchange(const DLTensor& like, Kind kind, void*& values) {
  DLTensor prototype = like;
  prototype.data = nullptr;
  prototype.dtype = dlpack_type(kind);
  prototype.strides = nullptr;
  prototype.byte_offset = 0;
  DLManagedTensorVersioned* made = nullptr;
  void* result = nullptr;
  if (api.exchange->managed_tensor_allocator(&prototype, &made, nullptr, ignore_error) != 0 || made == nullptr) {
    clear_error();
    return nullptr;
  }
  values = static_cast<char*>(made->dl_tensor.data) + made->dl_tensor.byte_offset;
  if (api.exchange->managed_tensor_to_py_object_no_sync(made, &result) != 0) clear_error();
  return Owned(static_cast<PyObject*>(result));
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

namespace {

constexpr const char* sample_script =
    "import torch\n"
    "def make():\n"
    "    with torch.inference_mode(False), torch.no_grad():\n"
    "        base = torch.arange(24, dtype=torch.float32, device='cpu').reshape(4, 6)\n"
    "        sample = base.t()[1:]\n"
    "    return [sample, sample.data_ptr(), *sample.shape, *sample.stride()]\n";

// Is a sample seen as it lies, and a tensor made that Python sees as it was filled?
bool views_are_right() {
  Owned list = made_by(sample_script);
  if (!list) return false;
  const auto number = [&list](Py_ssize_t i) { return PyLong_AsLongLong(PyList_GET_ITEM(list.get(), i)); };
  DLTensor view;
  bool right = view_of(PyList_GET_ITEM(list.get(), 0), view) && view.ndim == 2 && view.strides != nullptr &&
               view.device.device_type == kDLCPU && view.dtype.code == kDLFloat && view.dtype.bits == 32 &&
               static_cast<char*>(view.data) + view.byte_offset == PyLong_AsVoidPtr(PyList_GET_ITEM(list.get(), 1));
  for (Py_ssize_t i = 0; right && i < 2; ++i)
    right = view.shape[i] == number(2 + i) && view.strides[i] == number(4 + i);
  void* values = nullptr;
  const Owned made = right ? allocate_like(view, Kind::f32, values) : nullptr;
  list.reset();
  if (!made) return false;
  const std::int64_t count = count_elements(made.get());
  right = is_plain_tensor(made.get()) && kind_of_tensor(made.get()) == Kind::f32 && values != nullptr && count == 20;
  for (std::int64_t i = 0; right && i < count; ++i) static_cast<float*>(values)[i] = static_cast<float>(i);
  const Owned sum(right ? PyObject_CallMethod(made.get(), "tolist", nullptr) : nullptr);
  const Owned last(sum ? PySequence_GetItem(sum.get(), -1) : nullptr);
  const Owned value(last ? PySequence_GetItem(last.get(), -1) : nullptr);
  return value && PyFloat_AsDouble(value.get()) == static_cast<double>(count - 1);
}

template <typename Function>
void find_for_models(const char* name, const char* declaration, Function*& function) {
  find({"libtorch_cpu.so", name, "torch/csrc/inductor/aoti_torch/c/shim.h", declaration}, function);
}

void find_functions() {
  find_for_models("aoti_torch_get_data_ptr",
                  "AOTITorchError aoti_torch_get_data_ptr(AtenTensorHandle tensor, void** ret_data_ptr",
                  functions.get_data_ptr);
  find_for_models("aoti_torch_get_dim", "AOTITorchError aoti_torch_get_dim(AtenTensorHandle tensor, int64_t* ret_dim);",
                  functions.get_dim);
  find_for_models("aoti_torch_get_sizes",
                  "AOTITorchError aoti_torch_get_sizes(AtenTensorHandle tensor, int64_t** ret_sizes",
                  functions.get_sizes);
  find_for_models("aoti_torch_get_strides",
                  "AOTITorchError aoti_torch_get_strides(AtenTensorHandle tensor, int64_t** ret_strides",
                  functions.get_strides);
  find_for_models("aoti_torch_empty_strided",
                  "AOTITorchError aoti_torch_empty_strided(int64_t ndim, const int64_t* sizes_ptr, const int64_t* "
                  "strides_ptr, int32_t dtype, int32_t device_type, int32_t device_index, AtenTensorHandle* "
                  "ret_new_tensor",
                  functions.empty_strided);
  find_for_models("aoti_torch_delete_tensor_object",
                  "AOTITorchError aoti_torch_delete_tensor_object(AtenTensorHandle tensor);", functions.delete_tensor);
  constexpr const char* header = "torch/csrc/autograd/python_variable.h";
  find({"libtorch_python.so", "_Z16THPVariable_WrapN2at10TensorBaseE", header,
        "PyObject* THPVariable_Wrap(at::TensorBase var);"},
       functions.wrap);
  if (functions.wrap != nullptr) return;
  find({"libtorch_python.so", "_Z16THPVariable_WrapRKN2at10TensorBaseE", header,
        "PyObject* THPVariable_Wrap(const at::TensorBase& var);"},
       functions.wrap);
}

}  // namespace

void bind_exchange() {
  if (api.exchange != nullptr && exchange_api.holds_by(views_are_right)) return;
  clear_error();
  exchange_api.settle(false);
  api.exchange = nullptr;
}

void bind_views() {
  if (api.exchange != nullptr) return;
  if (compiled_model_functions.is_broken()) {
    compiled_model_functions.settle(false);
    return;
  }
  find_functions();
  detail::has_functions = functions.are_complete();
  detail::has_functions = compiled_model_functions.settle(detail::has_functions && views_are_right());
  clear_error();
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

Owned allocate_like(const DLTensor& like, Kind kind, void*& values) {
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

}  // namespace habana_mp::host

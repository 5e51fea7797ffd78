#include "host/aten.hpp"

#include <array>
#include <optional>

#include "errors.hpp"
#include "host/finding.hpp"
#include "host/ledger.hpp"
#include "host/symbols.hpp"
#include "host/torch_api.hpp"

namespace habana_mp::host {

namespace {

Assumption operators{
    "torch.operators",
    "aten::_unsafe_view and aten::new_empty are called in torch's library by the calling convention of C++, and "
    "THPVariable_Wrap makes a Python object of what they give",
    "what they give back, by torch's headers in releases that are not known; then what they make of a sample: dtype, "
    "strides, graph",
    "torch's Python functions are called; gradients of parts of weights cost more"};

// at::Tensor as it is handed over: one pointer, in a class that is not copied bit by bit. What is in one of ours was
// moved out of it before it ends.
struct Handle {
  const void* implementation = nullptr;

  Handle() = default;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {}  // NOLINT(modernize-use-equals-default): a trivial one would change how it is returned
};

// c10::ArrayRef<c10::SymInt>; a size that is a number is that number.
struct Sizes {
  const std::int64_t* begin;
  std::size_t count;
};

// std::optional of c10::ScalarType and c10::Layout, and of c10::Device.
using OptionalNumber = std::optional<std::int8_t>;
using OptionalDevice = std::optional<std::array<std::int8_t, 2>>;

Handle (*view)(const Handle&, Sizes) = nullptr;
Handle (*empty)(const Handle&, Sizes, OptionalNumber, OptionalNumber, OptionalDevice, std::optional<bool>) = nullptr;
PyObject* (*wrap)(Handle&&) = nullptr;  // THPVariable_Wrap, which takes a new tensor that it is given

// A tensor as torch's operators take it; null where this one's cannot be had.
const Handle* handle_of(PyObject* tensor) {
  if (wrap == nullptr || detail::implementation_of(tensor) == nullptr) return nullptr;
  return reinterpret_cast<const Handle*>(reinterpret_cast<const char*>(tensor) + detail::layout.implementation);
}

// Null where the operator fails with an error of torch's.
template <class Operator>
PyObject* wrapped(const Operator& run) noexcept {
  PyObject* made = nullptr;
  try {
    made = wrap(run());
  } catch (...) {
    made = nullptr;
  }
  PyErr_Clear();
  return made;
}

bool is_plain_float32(PyObject* made, std::int64_t elements) {
  return made != nullptr && is_plain_tensor(made) && kind_of_tensor(made) == Kind::f32 &&
         count_elements(made) == elements;
}

bool views_are_right(PyObject* sample) {
  PyObject* made = unsafe_view(sample, std::array<std::int64_t, 2>{3, 2});
  PyObject* node = made == nullptr ? nullptr : PyObject_GetAttrString(made, "grad_fn");
  PyObject* base = made == nullptr ? nullptr : PyObject_GetAttrString(made, "_base");
  const bool right = is_plain_float32(made, 6) && node != nullptr && node != Py_None && base == Py_None;
  Py_XDECREF(node);
  Py_XDECREF(base);
  Py_XDECREF(made);
  return right;
}

bool empty_ones_are_right(PyObject* sample) {
  PyObject* made = new_empty(sample, std::array<std::int64_t, 3>{4, 1, 5});
  PyObject* node = made == nullptr ? nullptr : PyObject_GetAttrString(made, "grad_fn");
  PyObject* stride = made == nullptr ? nullptr : PyObject_CallMethod(made, "stride", nullptr);
  PyObject* expected = Py_BuildValue("(iii)", 5, 5, 1);
  const bool right = is_plain_float32(made, 20) && node == Py_None && stride != nullptr && expected != nullptr &&
                     PyObject_RichCompareBool(stride, expected, Py_EQ) == 1;
  Py_XDECREF(expected);
  Py_XDECREF(stride);
  Py_XDECREF(node);
  Py_XDECREF(made);
  return right;
}

}  // namespace

void bind_aten() noexcept {
  if (way != Way::layout || operators.is_broken()) {
    operators.settle(false);
    return;
  }
  find({"libtorch_python.so", "_Z16THPVariable_WrapON2at10TensorBaseE", "torch/csrc/autograd/python_variable.h",
        "PyObject* THPVariable_Wrap(at::TensorBase&& var);"},
       wrap);
  find({"libtorch_cpu.so", "_ZN2at4_ops12_unsafe_view4callERKNS_6TensorEN3c108ArrayRefINS5_6SymIntEEE",
        "ATen/ops/_unsafe_view_ops.h", "static at::Tensor call(const at::Tensor & self, c10::SymIntArrayRef size);"},
       view);
  find({"libtorch_cpu.so",
        "_ZN2at4_ops9new_empty4callERKNS_6TensorEN3c108ArrayRefINS5_6SymIntEEESt8optionalINS5_10ScalarTypeEE"
        "S9_INS5_6LayoutEES9_INS5_6DeviceEES9_IbE",
        "ATen/ops/new_empty_ops.h",
        "static at::Tensor call(const at::Tensor & self, c10::SymIntArrayRef size, ::std::optional<at::ScalarType> "
        "dtype, "
        "::std::optional<at::Layout> layout, ::std::optional<at::Device> device, ::std::optional<bool> pin_memory);"},
       empty);
  PyObject* list = wrap == nullptr ? nullptr
                                   : made_by(
                                         "import torch\n"
                                         "def make():\n"
                                         "    with torch.inference_mode(False), torch.enable_grad():\n"
                                         "        return [torch.ones(2, 3, device='cpu', requires_grad=True)]\n");
  if (list == nullptr || view == nullptr || !views_are_right(PyList_GET_ITEM(list, 0))) view = nullptr;
  if (list == nullptr || empty == nullptr || !empty_ones_are_right(PyList_GET_ITEM(list, 0))) empty = nullptr;
  operators.settle(view != nullptr && empty != nullptr);
  Py_XDECREF(list);
  PyErr_Clear();
}

PyObject* unsafe_view(PyObject* tensor, std::span<const std::int64_t> sizes) noexcept {
  const Handle* const given = view == nullptr ? nullptr : handle_of(tensor);
  if (given == nullptr) return nullptr;
  return wrapped([&] { return view(*given, {sizes.data(), sizes.size()}); });
}

PyObject* as_tuple(std::span<const std::int64_t> sizes) noexcept {
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(sizes.size()));
  for (std::size_t i = 0; tuple != nullptr && i < sizes.size(); ++i) {
    PyObject* number = PyLong_FromLongLong(sizes[i]);
    if (number == nullptr) {
      Py_CLEAR(tuple);
    } else {
      PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i), number);
    }
  }
  PyErr_Clear();
  return tuple;
}

PyObject* new_empty(PyObject* tensor, std::span<const std::int64_t> sizes) noexcept {
  if (const Handle* const given = empty == nullptr ? nullptr : handle_of(tensor)) {
    return wrapped([&] { return empty(*given, {sizes.data(), sizes.size()}, {}, {}, {}, {}); });
  }
  PyObject* size = as_tuple(sizes);
  PyObject* made = size == nullptr ? nullptr : PyObject_CallMethod(tensor, "new_empty", "(O)", size);
  Py_XDECREF(size);
  drop_error();
  return made;
}

PyObject* as_strided(PyObject* tensor, const Geometry& geometry, std::int64_t begin) noexcept {
  const auto method = reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void*>(api.as_strided));
  PyObject* arguments =
      Py_BuildValue("(NNL)", as_tuple(geometry.sizes), as_tuple(geometry.strides), static_cast<long long>(begin));
  PyObject* made = arguments == nullptr ? nullptr : method(tensor, arguments, nullptr);
  Py_XDECREF(arguments);
  drop_error();
  return made;
}

}  // namespace habana_mp::host

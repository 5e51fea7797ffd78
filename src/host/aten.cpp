#include "host/aten.hpp"

#include <array>
#include <optional>

#include "errors.hpp"
#include "host/finding.hpp"
#include "host/ledger.hpp"
#include "host/symbols.hpp"
#include "host/tensors.hpp"
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

// at::Tensor as C++ passes it: one pointer in a class that is not trivially copyable. `wrap` moves the pointer out
// before a Handle is destroyed, so the destructor releases nothing.
struct Handle {
  const void* implementation = nullptr;

  Handle() = default;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {}  // NOLINT(modernize-use-equals-default): a trivial one would change how it is returned
};

// c10::ArrayRef<c10::SymInt>. A SymInt that is a plain number is stored as that number.
struct Sizes {
  const std::int64_t* begin;
  std::size_t count;
};

// std::optional of c10::ScalarType or c10::Layout, and of c10::Device.
using OptionalNumber = std::optional<std::int8_t>;
using OptionalDevice = std::optional<std::array<std::int8_t, 2>>;

Handle (*view)(const Handle&, Sizes) = nullptr;
Handle (*empty)(const Handle&, Sizes, OptionalNumber, OptionalNumber, OptionalDevice, std::optional<bool>) = nullptr;
PyObject* (*wrap)(Handle&&) = nullptr;  // THPVariable_Wrap, which takes ownership of the new tensor

// Returns a tensor in the form that torch's operators take; null if `wrap` was not found or the tensor has no
// implementation.
const Handle* handle_of(PyObject* tensor) {
  if (wrap == nullptr || detail::implementation_of(tensor) == nullptr) return nullptr;
  return reinterpret_cast<const Handle*>(reinterpret_cast<const char*>(tensor) + detail::layout.implementation);
}

// Returns the result of `run` as a Python object; null without an exception if torch throws.
template <class Operator>
Owned wrapped(const Operator& run) noexcept {
  PyObject* made = nullptr;
  try {
    made = wrap(run());
  } catch (...) {
    made = nullptr;
  }
  clear_error();
  return Owned(made);
}

bool is_plain_float32(const Owned& made, std::int64_t elements) {
  return made && is_plain_tensor(made.get()) && kind_of_tensor(made.get()) == Kind::f32 &&
         count_elements(made.get()) == elements;
}

bool views_are_right(PyObject* sample) {
  const Owned made = unsafe_view(sample, std::array<std::int64_t, 2>{3, 2});
  const Owned base(made ? PyObject_GetAttrString(made.get(), "_base") : nullptr);
  const Owned node(made ? PyObject_GetAttrString(made.get(), "grad_fn") : nullptr);
  return is_plain_float32(made, 6) && node && node.get() != Py_None && base.get() == Py_None;
}

bool empty_ones_are_right(PyObject* sample) {
  const Owned made = new_empty(sample, std::array<std::int64_t, 3>{4, 1, 5}, Kind::f32);
  const Owned node(made ? PyObject_GetAttrString(made.get(), "grad_fn") : nullptr);
  const Owned stride(made ? PyObject_CallMethod(made.get(), "stride", nullptr) : nullptr);
  const Owned expected(Py_BuildValue("(iii)", 5, 5, 1));
  return is_plain_float32(made, 20) && node.get() == Py_None && stride && expected &&
         PyObject_RichCompareBool(stride.get(), expected.get(), Py_EQ) == 1;
}

}  // namespace

void bind_aten() {
  if (read_method != ReadMethod::layout || operators.is_broken()) {
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
  constexpr const char* script =
      "import torch\n"
      "def make():\n"
      "    with torch.inference_mode(False), torch.enable_grad():\n"
      "        return [torch.ones(2, 3, device='cpu', requires_grad=True)]\n";
  const Owned list = wrap == nullptr ? nullptr : made_by(script);
  if (!list || view == nullptr || !views_are_right(PyList_GET_ITEM(list.get(), 0))) view = nullptr;
  if (!list || empty == nullptr || !empty_ones_are_right(PyList_GET_ITEM(list.get(), 0))) empty = nullptr;
  operators.settle(view != nullptr && empty != nullptr);
  clear_error();
}

Owned unsafe_view(PyObject* tensor, std::span<const std::int64_t> sizes) noexcept {
  const Handle* const given = view == nullptr ? nullptr : handle_of(tensor);
  if (given == nullptr) return nullptr;
  return wrapped([&] { return view(*given, {sizes.data(), sizes.size()}); });
}

Owned as_tuple(std::span<const std::int64_t> sizes) noexcept {
  Owned tuple(PyTuple_New(static_cast<Py_ssize_t>(sizes.size())));
  for (std::size_t i = 0; tuple && i < sizes.size(); ++i) {
    PyObject* number = PyLong_FromLongLong(sizes[i]);
    if (number == nullptr) {
      tuple.reset();
    } else {
      PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), number);
    }
  }
  clear_error();
  return tuple;
}

Owned new_empty(PyObject* tensor, std::span<const std::int64_t> sizes, Kind kind) noexcept {
  if (const Handle* const given = empty == nullptr ? nullptr : handle_of(tensor)) {
    const auto dtype = static_cast<std::int8_t>(detail::scalar_type_of(kind));
    return wrapped([&] { return empty(*given, {sizes.data(), sizes.size()}, dtype, {}, {}, {}); });
  }
  const Owned size = as_tuple(sizes);
  const Owned given(size ? PyObject_CallMethod(tensor, "new_empty", "(O)", size.get()) : nullptr);
  Owned made(given ? PyObject_CallMethod(given.get(), "to", "(O)", dtype_of(kind)) : nullptr);
  drop_error();
  return made;
}

Owned as_strided(PyObject* tensor, const Geometry& geometry, std::int64_t begin) noexcept {
  const auto method = reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void*>(api.as_strided));
  const Owned arguments(Py_BuildValue("(NNL)", as_tuple(geometry.sizes).release(), as_tuple(geometry.strides).release(),
                                      static_cast<long long>(begin)));
  Owned made(arguments ? method(tensor, arguments.get(), nullptr) : nullptr);
  drop_error();
  return made;
}

}  // namespace habana_mp::host

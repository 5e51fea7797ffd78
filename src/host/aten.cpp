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
    "torch's headers declare them; what they make of a sample: dtype, strides, graph",
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
// THPVariable_Wrap, which takes ownership of the new tensor. Null if one of the three was not found.
PyObject* (*wrap)(Handle&&) = nullptr;

// Returns a tensor in the form that torch's operators take; null if these were not found or the tensor has no
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

// True if the operators give a view without a base and a new tensor, as they should.
bool are_right() {
  const Owned list = made_by(
      "import torch\n"
      "def fit(view, new):\n"
      "    is_view = view.shape == (3, 2) and view._base is None and view.grad_fn is not None\n"
      "    is_new = new.shape == (4, 1, 5) and new.stride() == (5, 5, 1) and new.grad_fn is None\n"
      "    return is_view and is_new and view.dtype is new.dtype is torch.float32\n"
      "def make():\n"
      "    with torch.inference_mode(False), torch.enable_grad():\n"
      "        return [torch.ones(2, 3, dtype=torch.float32, device='cpu', requires_grad=True), fit]\n");
  PyObject* const sample = list ? PyList_GET_ITEM(list.get(), 0) : nullptr;
  const Owned seen = sample ? unsafe_view(sample, std::array<std::int64_t, 2>{3, 2}) : nullptr;
  const Owned made = seen ? new_empty(sample, std::array<std::int64_t, 3>{4, 1, 5}, Kind::f32) : nullptr;
  if (!made) return false;
  PyObject* const arguments[] = {seen.get(), made.get()};
  return Owned(PyObject_Vectorcall(PyList_GET_ITEM(list.get(), 1), arguments, 2, nullptr)).get() == Py_True;
}

bool find_operators() {
  return find({"libtorch_python.so", "_Z16THPVariable_WrapON2at10TensorBaseE", "torch/csrc/autograd/python_variable.h",
               "PyObject* THPVariable_Wrap(at::TensorBase&& var);"},
              wrap) &&
         find({"libtorch_cpu.so", "_ZN2at4_ops12_unsafe_view4callERKNS_6TensorEN3c108ArrayRefINS5_6SymIntEEE",
               "ATen/ops/_unsafe_view_ops.h",
               "static at::Tensor call(const at::Tensor & self, c10::SymIntArrayRef size);"},
              view) &&
         find({"libtorch_cpu.so",
               "_ZN2at4_ops9new_empty4callERKNS_6TensorEN3c108ArrayRefINS5_6SymIntEEESt8optionalINS5_10ScalarTypeEE"
               "S9_INS5_6LayoutEES9_INS5_6DeviceEES9_IbE",
               "ATen/ops/new_empty_ops.h",
               "static at::Tensor call(const at::Tensor & self, c10::SymIntArrayRef size, "
               "::std::optional<at::ScalarType> dtype, ::std::optional<at::Layout> layout, "
               "::std::optional<at::Device> device, ::std::optional<bool> pin_memory);"},
              empty);
}

}  // namespace

void bind_aten() {
  const auto fit = [] { return read_method == ReadMethod::layout && find_operators() && are_right(); };
  if (!operators.holds_by(fit)) wrap = nullptr;
  clear_error();
}

Owned unsafe_view(PyObject* tensor, std::span<const std::int64_t> sizes) noexcept {
  const Handle* const given = handle_of(tensor);
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
  if (const Handle* const given = handle_of(tensor)) {
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

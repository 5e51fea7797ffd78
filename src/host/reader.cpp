#include "host/reader.hpp"

#include <optional>
#include <vector>

#include "errors.hpp"
#include "host/finding.hpp"
#include "host/ledger.hpp"

namespace habana_mp::host {

ReadMethod read_method = ReadMethod::attribute;

namespace {

Assumption tensor_layout{
    "torch.tensor-layout",
    "a tensor's Python object holds the address of its implementation, and that its dtype and its number of elements, "
    "all at offsets that are the same in every tensor",
    "some 180 tensors of all kinds agree on each offset, and on no other one",
    "dtypes are read through Python; a call takes longer, and no cast of a weight is cached"};

}  // namespace

namespace detail {

Layout layout;

namespace {
constexpr std::array<Kind, scalar_types> make_kinds() {
  std::array<Kind, scalar_types> kinds{};
  kinds[5] = Kind::f16;
  kinds[6] = Kind::f32;
  kinds[7] = Kind::wide;   // float64
  kinds[8] = Kind::wide;   // complex32
  kinds[9] = Kind::wide;   // complex64
  kinds[10] = Kind::wide;  // complex128
  kinds[15] = Kind::bf16;
  kinds[46] = Kind::wide;  // bcomplex32, since torch 2.15
  return kinds;
}
}  // namespace
const std::array<Kind, scalar_types> kind_of_scalar_type = make_kinds();

std::int32_t scalar_type_of(Kind kind) noexcept {
  for (std::size_t i = 0; i < kind_of_scalar_type.size(); ++i) {
    if (kind_of_scalar_type[i] == kind) return static_cast<std::int32_t>(i);
  }
  return -1;
}

Kind kind_by_attribute(PyObject* tensor) noexcept {
  // Calls a plain tensor's getter directly; a subclass may define `dtype` itself.
  const Owned dtype(is_plain_tensor(tensor) ? api.get_dtype->get(tensor, api.get_dtype->closure)
                                            : PyObject_GetAttrString(tensor, "dtype"));
  if (!dtype) {
    clear_error();
    return Kind::other;
  }
  return kind_of_dtype(dtype.get());
}

}  // namespace detail

Kind kind_of_dtype(PyObject* dtype) noexcept {
  if (dtype == api.float32) return Kind::f32;
  if (dtype == api.bfloat16) return Kind::bf16;
  if (dtype == api.float16) return Kind::f16;
  const bool is_wide = dtype == api.float64 || dtype == api.complex64 || dtype == api.complex128 ||
                       dtype == api.complex32 || dtype == api.bcomplex32;
  return is_wide ? Kind::wide : Kind::other;
}

namespace {

// The searched part of a tensor's implementation. The dtype is well within it.
constexpr std::size_t implementation_size = 192;

struct Sample {
  Owned tensor;
  std::uint16_t scalar_type;
  std::int64_t elements;
};

// Makes tensors of all kinds that differ in everything except the searched offsets. Nullopt with an exception set on
// failure.
std::optional<std::vector<Sample>> make_samples() {
  constexpr const char* script =
      "import torch\n"
      "def make():\n"
      "    numbers = {torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.int64: 4,\n"
      "               torch.float16: 5, torch.float32: 6, torch.float64: 7, torch.complex64: 9,\n"
      "               torch.complex128: 10, torch.bool: 11, torch.bfloat16: 15}\n"
      "    made = []\n"
      "    with torch.inference_mode(False), torch.no_grad():\n"
      "        for dtype, number in numbers.items():\n"
      "            tensors = [torch.empty(shape, dtype=dtype, device='cpu')\n"
      "                       for shape in ((), (0,), (1,), (7,), (3, 5), (2, 3, 4, 11), (1, 1, 1, 1, 1, 1, 13))]\n"
      "            base = torch.empty(6, 10, dtype=dtype, device='cpu')\n"
      "            tensors += [base.t(), base[1:, 2:], base[::2], base.view(60), base.detach(),\n"
      "                        torch.empty(9, 4, dtype=dtype, device='meta')]\n"
      "            if dtype.is_floating_point or dtype.is_complex:\n"
      "                leaf = torch.empty(5, 3, dtype=dtype, device='cpu').requires_grad_()\n"
      "                tensors += [leaf, torch.nn.Parameter(torch.empty(17, dtype=dtype, device='cpu'))]\n"
      "                with torch.enable_grad():\n"
      "                    tensors.append(leaf.view(15))\n"
      "            made += [(tensor, number, tensor.numel()) for tensor in tensors]\n"
      "    return made\n";
  const Owned list = made_by(script);
  if (!list) return std::nullopt;
  std::vector<Sample> samples;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list.get()); ++i) {
    PyObject* row = PyList_GET_ITEM(list.get(), i);
    samples.push_back({Owned::borrowed(PyTuple_GET_ITEM(row, 0)),
                       static_cast<std::uint16_t>(PyLong_AsLong(PyTuple_GET_ITEM(row, 1))),
                       static_cast<std::int64_t>(PyLong_AsLongLong(PyTuple_GET_ITEM(row, 2)))});
  }
  return samples;
}

// Finds where torch stores a tensor's implementation, and where that stores dtype and size. Assumes only that both
// exist: the offsets are the only ones at which about 180 tensors of all kinds agree.
std::optional<detail::Layout> find_layout() {
  const std::optional<std::vector<Sample>> samples = make_samples();
  if (!samples) {
    clear_error();
    return std::nullopt;
  }
  std::optional<detail::Layout> found;
  const auto object_size = static_cast<std::ptrdiff_t>(api.tensor_base->tp_basicsize);
  for (std::ptrdiff_t place = static_cast<std::ptrdiff_t>(sizeof(PyObject));
       !found && place + static_cast<std::ptrdiff_t>(sizeof(void*)) <= object_size;
       place += static_cast<std::ptrdiff_t>(sizeof(void*))) {
    const auto memory = read_each<implementation_size>(
        samples->size(), [&](std::size_t i) { return load<const void*>((*samples)[i].tensor.get(), place); });
    if (!memory) continue;
    const auto dtype = unique_offset<std::uint16_t>(*samples, *memory, [](const Sample& s) { return s.scalar_type; });
    const auto elements = unique_offset<std::int64_t>(*samples, *memory, [](const Sample& s) { return s.elements; });
    if (dtype && elements) found = detail::Layout{place, *dtype, *elements};
  }
  return found;
}

}  // namespace

void bind_reader() {
  std::optional<detail::Layout> found;
  if (!tensor_layout.holds_by([&] { return (found = find_layout()).has_value(); })) return;
  read_method = ReadMethod::layout;
  detail::layout = *found;
}

std::int64_t detail::count_by_method(PyObject* tensor) noexcept {
  const Owned size(PyObject_CallMethod(tensor, "numel", nullptr));
  const long long count = size && PyLong_Check(size.get()) ? PyLong_AsLongLong(size.get()) : 0;
  clear_error();
  return count < 0 ? 0 : count;
}

}  // namespace habana_mp::host

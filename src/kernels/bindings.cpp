#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gil.hpp"
#include "kernels/cast.hpp"
#include "kernels/dispatch.hpp"
#include "kernels/product.hpp"
#include "pybind.hpp"

namespace py = pybind11;

namespace habana_mp {
namespace {

using kernels::Float;
using kernels::Job;

// Below this many elements, a cast is done before another thread could use the GIL.
constexpr std::size_t gil_kept_below = std::size_t{1} << 16;

constexpr const char* bfloat16_is = " (ml_dtypes.bfloat16, or its bits as uint16)";

std::string type_name(py::handle object) { return py::str(py::type::handle_of(object).attr("__name__")); }

std::string described(const py::array& array) { return "an array of " + std::string(py::str(array.dtype())); }

std::string shape_of(const py::array& array) { return py::str(array.attr("shape")); }

const char* name_of(Float type) {
  switch (type) {
    case Float::f32:
      return "float32";
    case Float::bf16:
      return "bfloat16";
    case Float::f16:
      return "float16";
  }
  return "";
}

std::optional<Float> float_of(const py::dtype& dtype) {
  // NumPy numbers a dtype of another package when it is registered, once per process.
  static std::atomic<int> bfloat16_number{-1};
  const int number = dtype.num();
  constexpr char swapped = std::endian::native == std::endian::little ? '>' : '<';
  if (dtype.byteorder() == swapped) return std::nullopt;
  if (number == py::detail::npy_api::NPY_FLOAT_) return Float::f32;
  if (number == py::detail::npy_api::NPY_USHORT_ || number == bfloat16_number.load(std::memory_order_relaxed)) {
    return Float::bf16;
  }
  if (number == 23) {  // NPY_HALF, which pybind11 does not define
    return Float::f16;
  }
  if (dtype.itemsize() == 2 && std::string(py::str(dtype.attr("name"))) == "bfloat16") {
    bfloat16_number.store(number, std::memory_order_relaxed);
    return Float::bf16;
  }
  return std::nullopt;
}

py::array checked_array(py::handle object, const std::string& name) {
  if (!py::isinstance<py::array>(object)) {
    throw py::type_error("`" + name + "` must be a NumPy array of float32, float16 or bfloat16" +
                         std::string(bfloat16_is) + ", got " + type_name(object));
  }
  return py::reinterpret_borrow<py::array>(object);
}

Float checked_float(const py::array& array, const std::string& name) {
  const std::optional<Float> type = float_of(array.dtype());
  if (!type) {
    throw py::type_error("`" + name + "` must be of float32, float16 or bfloat16" + std::string(bfloat16_is) +
                         ", in native byte order, got " + described(array));
  }
  return *type;
}

bool is_contiguous(const py::array& array) { return (array.flags() & py::array::c_style) != 0; }

struct Span {
  std::uintptr_t begin;
  std::uintptr_t end;
};

// Returns the range from an array's first to its last byte, whatever its strides.
Span span_of(const py::array& array) {
  const auto data = reinterpret_cast<std::uintptr_t>(array.data());
  Span span{data, data + static_cast<std::uintptr_t>(array.itemsize())};
  for (py::ssize_t axis = 0; axis < array.ndim(); ++axis) {
    const py::ssize_t extent = array.shape(axis);
    if (extent == 0) return {data, data};
    const py::ssize_t reach = (extent - 1) * array.strides(axis);
    (reach < 0 ? span.begin : span.end) += static_cast<std::uintptr_t>(reach);
  }
  return span;
}

bool overlap(const py::array& a, const py::array& b) {
  const Span first = span_of(a);
  const Span second = span_of(b);
  return first.begin < second.end && second.begin < first.end && first.begin != first.end && second.begin != second.end;
}

bool same_shape(const py::array& a, const py::array& b) {
  return std::equal(a.shape(), a.shape() + a.ndim(), b.shape(), b.shape() + b.ndim());
}

// Raises unless `out` has the shape of `array`, is writeable, and overlaps neither itself nor `array`.
void check_target(const py::array& out, const std::string& out_name, const py::array& array,
                  const std::string& array_name) {
  if (!same_shape(out, array)) {
    throw py::value_error("`" + out_name + "` must have the shape of `" + array_name + "`, " + shape_of(array) +
                          ", got " + shape_of(out));
  }
  if (!out.writeable()) {
    throw py::value_error("`" + out_name + "` must be writeable, got a read-only array");
  }
  for (py::ssize_t axis = 0; axis < out.ndim(); ++axis) {
    if (out.size() != 0 && out.shape(axis) > 1 && out.strides(axis) == 0) {
      throw py::value_error("`" + out_name + "` must not overlap itself, got an array of shape " + shape_of(out) +
                            " with strides " + std::string(py::str(out.attr("strides"))));
    }
  }
  if (overlap(out, array)) {
    throw py::value_error("`" + out_name + "` must not overlap `" + array_name + "`, got arrays that share memory");
  }
}

py::array checked_out(py::handle object, const py::array& array, Float to) {
  if (!py::isinstance<py::array>(object)) {
    throw py::type_error("`out` must be a NumPy array of " + std::string(name_of(to)) + " or None, got " +
                         type_name(object));
  }
  auto out = py::reinterpret_borrow<py::array>(object);
  if (float_of(out.dtype()) != to) {
    const char* bits = to == Float::bf16 ? bfloat16_is : "";
    throw py::type_error("`out` must be an array of " + std::string(name_of(to)) + bits +
                         " in native byte order, got " + described(out));
  }
  check_target(out, "out", array, "array");
  return out;
}

unsigned checked_threads(py::handle object) {
  if (object.is_none()) {
    static const unsigned all = std::thread::hardware_concurrency();
    return all != 0 ? all : 1;
  }
  if (PyIndex_Check(object.ptr()) == 0 || PyBool_Check(object.ptr())) {
    throw py::type_error("`threads` must be an int or None, got " + type_name(object));
  }
  int overflow = 0;
  const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(object.ptr()));
  if (!index) {
    throw py::error_already_set();
  }
  const long threads = PyLong_AsLongAndOverflow(index.ptr(), &overflow);
  if (overflow < 0 || (overflow == 0 && threads < 1)) {
    throw py::value_error("`threads` must be at least 1, got " + std::string(py::str(object)));
  }
  return overflow > 0 || threads > 1024 ? 1024U : static_cast<unsigned>(threads);
}

const kernels::Table& checked_path(const std::string& name) {
  const kernels::Table* table = kernels::find(name);
  if (table == nullptr) {
    throw py::value_error("`path` must be one of what kernels_paths() gives, got '" + name + "'");
  }
  return *table;
}

Job job_of(const py::array& array, Float from, py::array& out, Float to) {
  if (is_contiguous(array) && is_contiguous(out)) {
    return {array.data(), from, out.mutable_data(), to, static_cast<std::size_t>(array.size())};
  }
  std::vector<kernels::Axis> axes;
  axes.reserve(static_cast<std::size_t>(array.ndim()));
  for (py::ssize_t axis = 0; axis < array.ndim(); ++axis) {
    axes.push_back({static_cast<std::size_t>(array.shape(axis)), array.strides(axis), out.strides(axis)});
  }
  return {array.data(), from, out.mutable_data(), to, std::move(axes)};
}

// Without a path, the instruction set that was chosen makes the cast.
py::array kernels_cast(const py::object& object, const py::object& dtype, const py::object& out_or_none,
                       const py::object& threads_or_none, const std::optional<std::string>& path) {
  const kernels::Table* const table = path ? &checked_path(*path) : nullptr;
  const py::array array = checked_array(object, "array");
  const Float from = checked_float(array, "array");
  if (!py::isinstance<py::dtype>(dtype)) {
    throw py::type_error("`dtype` must be a NumPy dtype, got " + type_name(dtype));
  }
  const auto target = py::reinterpret_borrow<py::dtype>(dtype);
  const std::optional<Float> to = float_of(target);
  if (!to) {
    throw py::type_error("`dtype` must be float32, float16 or bfloat16" + std::string(bfloat16_is) + ", got " +
                         std::string(py::str(dtype)));
  }
  const unsigned threads = checked_threads(threads_or_none);
  py::array out = out_or_none.is_none()
                      ? py::array(target, std::vector<py::ssize_t>(array.shape(), array.shape() + array.ndim()))
                      : checked_out(out_or_none, array, *to);
  const Job job = job_of(array, from, out, *to);
  without_gil_if(job.count() >= gil_kept_below,
                 [&] { table == nullptr ? kernels::cast(job, threads) : kernels::cast_with(*table, job, threads); });
  return out;
}

std::vector<std::string> kernels_paths() {
  std::vector<std::string> names;
  for (const kernels::Table* table : kernels::supported()) {
    names.emplace_back(table->name);
  }
  return names;
}

using Bits = py::array_t<std::uint16_t, py::array::c_style>;

// Raises unless `right`. The tests call these functions directly, and a mistake there must not write outside the
// arrays.
void check(bool right, const char* what) {
  if (!right) throw py::value_error(what);
}

void kernels_multiply(const py::array_t<std::uint16_t>& input, const py::array_t<std::uint16_t>& weight,
                      const std::optional<py::array>& bias, py::array result, const std::string& path, bool is_float16,
                      unsigned threads, bool inner_first) {
  const kernels::Table& table = checked_path(path);
  check(table.fused != nullptr, "this instruction set has no such kernels");
  for (const auto* array : {&input, &weight}) {
    check(array->ndim() == 2 && array->strides(1) == 2 && array->strides(0) >= 2 * array->shape(1),
          "`input` and `weight` must have two dimensions and rows that lie one after the other");
  }
  check(result.ndim() == 2 && result.shape(0) == input.shape(0), "`result` must have as many rows as `input`");
  check(input.shape(1) != 0, "rows must not be empty");
  check(weight.shape(inner_first ? 0 : 1) == input.shape(1) && weight.shape(inner_first ? 1 : 0) == result.shape(1),
        "`weight` must be for input and result");
  check(!bias || (bias->size() == result.shape(1) && bias->dtype().is(result.dtype())),
        "`bias` must be as long as a row of `result`, and of its dtype");
  const bool float32_result = result.dtype().kind() == 'f';
  check(result.itemsize() == (float32_result ? 4 : 2), "`result` must hold float32, or bits");
  const kernels::Product product{
      .kind = is_float16 ? Float::f16 : Float::bf16,
      .input = input.data(),
      .input_step = static_cast<std::size_t>(input.strides(0) / 2),
      .rows = static_cast<std::size_t>(input.shape(0)),
      .inner = static_cast<std::size_t>(input.shape(1)),
      .weight = weight.data(),
      .weight_step = static_cast<std::size_t>(weight.strides(0) / 2),
      .inner_first = inner_first,
      .outer = static_cast<std::size_t>(result.shape(1)),
      .bias = bias ? bias->data() : nullptr,
      .float32_result = float32_result,
      .result = result.mutable_data(),
      .result_step = static_cast<std::size_t>(result.shape(1)),
  };
  bool made = false;
  without_gil([&] { made = kernels::multiply_with(table, product, threads); });
  if (!made) throw std::bad_alloc();
}

}  // namespace

void register_kernels(py::module_& module) {
  if (const std::optional<std::string> complaint = kernels::complaint()) {
    throw py::value_error(*complaint);
  }
  module.def("kernels_cast", &kernels_cast, py::arg("array"), py::arg("dtype"), py::arg("out") = py::none(),
             py::arg("threads") = py::none(), py::arg("path") = py::none(),
             "Casts an array to a dtype, by this instruction set or the one that was chosen.");
  module.def("kernels_multiplies_bfloat16", &kernels::multiplies_bfloat16);
  module.def("kernels_multiply", &kernels_multiply, py::arg("input"), py::arg("weight"), py::arg("bias"),
             py::arg("result").noconvert(), py::arg("path"), py::arg("is_float16") = false, py::arg("threads") = 1,
             py::arg("inner_first") = false);
  module.def("kernels_path", &kernels::path, "The instruction set that was chosen.");
  module.def("kernels_paths", &kernels_paths, "The instruction sets that this processor can run, the plainest first.");
}

}  // namespace habana_mp

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "engine/products.hpp"
#include "errors.hpp"
#include "gil.hpp"
#include "host/aten.hpp"
#include "host/modes.hpp"
#include "host/tensors.hpp"
#include "host/view.hpp"
#include "kernels/product.hpp"
#include "tensor/buffers.hpp"
#include "tensor/cast.hpp"
#include "weights/entry.hpp"

namespace habana_mp::engine {

using kernels::Product;

namespace {

// A product of rows and a matrix. All tensors are in one lower precision; with `float32_result` the bias may be in
// float32.
struct ProductCall {
  PyObject* input;
  PyObject* weight;
  PyObject* bias = Py_None;
  bool is_linear = false;     // the weight is [outer][inner], as for F.linear, not [inner][outer]
  bool wants_matrix = false;  // the input must have two dimensions
  bool wants_vector = false;  // the input must have one dimension
  bool float32_result = false;
};

constexpr std::int32_t most_dimensions = 8;
// With such a weight the preparation of torch's library takes the most time of a product.
constexpr std::size_t small_weight = std::size_t{1} << 16;
// Below this many products of two numbers a call ends before another thread could use the GIL.
constexpr std::size_t least_products_without_gil = std::size_t{1} << 21;

// Views a plain tensor of this kind on the CPU, whose values do not count as negated.
bool view_operand(PyObject* tensor, Kind kind, DLTensor& view) {
  return host::view_plain_on_cpu(tensor, view) && host::kind_of_tensor(tensor) == kind && !host::is_negative(tensor);
}

// The number of dimensions of a plain tensor on the CPU; 0 for anything else.
std::int32_t dimensions_of(PyObject* tensor) {
  DLTensor view;
  return host::view_plain_on_cpu(tensor, view) ? view.ndim : 0;
}

const void* values_of(const DLTensor& view) { return static_cast<const char*>(view.data) + view.byte_offset; }

// Sets the rows of the input: those of a matrix must be at equal distances without overlap, those of a tensor with more
// dimensions must be adjacent. A vector is one row. Returns false for any other layout.
bool set_rows(const DLTensor& view, Product& product) {
  const std::int32_t last = view.ndim - 1;
  if (last < 0 || view.ndim > most_dimensions) return false;
  const auto length = static_cast<std::int64_t>(product.inner);
  std::int64_t count = 1;
  std::int64_t step = 0;
  std::int64_t expected = length;
  if (view.shape[last] != length || (view.strides != nullptr && view.strides[last] != 1 && length != 1)) return false;
  for (std::int32_t i = last - 1; i >= 0; --i) {
    const std::int64_t size = view.shape[i];
    const std::int64_t stride = view.strides == nullptr ? expected : view.strides[i];
    if (size != 1) {
      const bool may_be_apart = last == 1 && stride >= length;
      if (stride != expected && !may_be_apart) return false;
      if (step == 0) step = stride;
    }
    count *= size;
    expected *= size;
  }
  product.input = values_of(view);
  product.rows = static_cast<std::size_t>(count);
  product.input_step = static_cast<std::size_t>(step == 0 ? length : step);
  return true;
}

// Sets the matrix, whose rows or columns must be adjacent numbers.
bool set_weight(const DLTensor& view, bool is_linear, Product& product) {
  if (view.ndim != 2) return false;
  const std::int64_t rows = view.shape[0];
  const std::int64_t columns = view.shape[1];
  const std::int64_t strides[2] = {view.strides == nullptr ? columns : view.strides[0],
                                   view.strides == nullptr ? 1 : view.strides[1]};
  const bool has_rows = (strides[1] == 1 || columns == 1) && (strides[0] >= columns || rows == 1);
  const bool has_columns = (strides[0] == 1 || rows == 1) && (strides[1] >= rows || columns == 1);
  if (!has_rows && !has_columns) return false;
  product.weight = values_of(view);
  product.weight_step = static_cast<std::size_t>(strides[has_rows ? 0 : 1]);
  product.inner_first = is_linear != has_rows;
  product.outer = static_cast<std::size_t>(is_linear ? rows : columns);
  product.inner = static_cast<std::size_t>(is_linear ? columns : rows);
  return true;
}

// Returns the product without its result. Returns nothing if the kernels do not take a tensor as it is.
std::optional<Product> product_of(const ProductCall& call, Kind kind) {
  DLTensor input;
  DLTensor weight;
  if (!view_operand(call.input, kind, input) || !view_operand(call.weight, kind, weight)) return std::nullopt;
  Product product{};
  product.kind = tensor::float_of(kind);
  if ((call.wants_matrix && input.ndim != 2) || (call.wants_vector && input.ndim != 1) ||
      !set_weight(weight, call.is_linear, product) || !set_rows(input, product)) {
    return std::nullopt;
  }
  if (product.rows == 0 || product.inner == 0 || product.outer == 0) return std::nullopt;
  if (call.bias != Py_None) {
    DLTensor bias;
    if (!view_operand(call.bias, call.float32_result ? Kind::f32 : kind, bias) || bias.ndim != 1 ||
        !host::is_contiguous(bias) || static_cast<std::size_t>(bias.shape[0]) != product.outer) {
      return std::nullopt;
    }
    product.bias = values_of(bias);
  }
  product.float32_result = call.float32_result;
  product.result_step = product.outer;
  return product;
}

bool is_worth_multiplying(const Product& product) {
  return product.float32_result || product.rows <= kernels::most_rows(product.kind) ||
         product.outer * product.inner <= small_weight;
}

std::int64_t stride_of(const DLTensor& view, std::int32_t dimension) {
  if (view.strides != nullptr) return view.strides[dimension];
  return std::accumulate(view.shape + dimension + 1, view.shape + view.ndim, std::int64_t{1}, std::multiplies<>());
}

// Views the first matrix of a stack of matrices, which its last two dimensions are.
DLTensor first_matrix(const DLTensor& stack) {
  DLTensor matrix = stack;
  matrix.ndim = 2;
  matrix.shape += stack.ndim - 2;
  if (matrix.strides != nullptr) matrix.strides += stack.ndim - 2;
  return matrix;
}

// Products of the matrices of two stacks, whose results are adjacent.
struct Stack {
  std::vector<std::int64_t> sizes;  // of the result
  std::vector<Product> products;    // without their results
};

// With fewer multiplications in each product, its preparation takes the most time.
constexpr std::size_t least_of_matrices = std::size_t{1} << 12;

// Returns nothing if the kernels do not take the matrices as they are, or are slower. `expands`: one matrix may stand
// for several, and there may be more than three dimensions. Without `with_products` only the sizes are set.
std::optional<Stack> stack_of(PyObject* one, PyObject* other, Kind kind, bool expands, bool with_products) {
  DLTensor left;
  DLTensor right;
  if (!view_operand(one, kind, left) || !view_operand(other, kind, right) || left.ndim != right.ndim)
    return std::nullopt;
  if (left.ndim < 3 || (left.ndim > 3 && !expands)) return std::nullopt;
  Product first{};
  first.kind = tensor::float_of(kind);
  if (!set_weight(first_matrix(right), false, first) || !set_rows(first_matrix(left), first)) return std::nullopt;
  first.result_step = first.outer;
  Stack made;
  std::int64_t count = 1;
  for (std::int32_t i = 0; i < left.ndim - 2; ++i) {
    const std::int64_t sizes[2] = {left.shape[i], right.shape[i]};
    if (sizes[0] != sizes[1] && !(expands && (sizes[0] == 1 || sizes[1] == 1))) return std::nullopt;
    made.sizes.push_back(sizes[0] == 1 ? sizes[1] : sizes[0]);
    count *= made.sizes.back();
  }
  if (count == 0 || first.rows * first.inner * first.outer < least_of_matrices) return std::nullopt;
  const auto bytes = static_cast<std::int64_t>(tensor::bytes_as(kind, 1));
  for (std::int64_t number = 0; with_products && number < count; ++number) {
    Product& product = made.products.emplace_back(first);
    std::int64_t rest = number;
    for (std::int32_t i = left.ndim - 3; i >= 0; --i) {
      const std::int64_t place = rest % made.sizes[static_cast<std::size_t>(i)];
      rest /= made.sizes[static_cast<std::size_t>(i)];
      const auto moved = [&](const void* memory, const DLTensor& view) {
        return static_cast<const char*>(memory) + (view.shape[i] == 1 ? 0 : place * stride_of(view, i) * bytes);
      };
      product.input = moved(product.input, left);
      product.weight = moved(product.weight, right);
    }
  }
  made.sizes.push_back(static_cast<std::int64_t>(first.rows));
  made.sizes.push_back(static_cast<std::int64_t>(first.outer));
  return made;
}

Owned multiply_stack(PyObject* one, PyObject* other, Kind kind, bool expands) {
  const std::optional<Stack> first = stack_of(one, other, kind, expands, false);
  Owned made = first ? host::new_empty(one, first->sizes, kind) : nullptr;
  DLTensor result;
  if (!made || !view_operand(made.get(), kind, result) || !host::is_contiguous(result)) return nullptr;
  // Other code may have run meanwhile, so all is read from here on.
  std::optional<Stack> stack = stack_of(one, other, kind, expands, true);
  if (!stack || stack->sizes != first->sizes) return nullptr;
  const Product& each = stack->products.front();
  const std::size_t bytes = each.rows * each.outer * tensor::bytes_as(kind, 1);
  auto* memory = static_cast<char*>(const_cast<void*>(values_of(result)));
  for (Product& product : stack->products) {
    product.result = memory;
    memory += bytes;
  }
  const unsigned threads = host::torch_threads();
  bool done = false;
  without_gil_if(stack->products.size() * each.rows * each.inner * each.outer >= least_products_without_gil,
                 [&] { done = kernels::multiply_each(stack->products, threads); });
  return done ? std::move(made) : nullptr;
}

// Multiplies rows that are stored as the kernels take them.
Owned multiply_rows(const ProductCall& call, Kind kind, const Product& first) {
  DLTensor view;
  if (!host::view_on_cpu(call.input, view)) return nullptr;
  std::array<std::int64_t, most_dimensions> sizes{};
  std::copy_n(view.shape, view.ndim, sizes.begin());
  const auto dimensions = static_cast<std::size_t>(view.ndim);
  sizes[dimensions - 1] = static_cast<std::int64_t>(first.outer);
  const Kind of_result = call.float32_result ? Kind::f32 : kind;
  Owned made = host::new_empty(call.input, std::span(sizes).first(dimensions), of_result);
  DLTensor result;
  if (!made || !view_operand(made.get(), of_result, result) || !host::is_contiguous(result)) return nullptr;
  // Other code may have run meanwhile, so all is read from here on.
  std::optional<Product> product = product_of(call, kind);
  if (!product || product->rows != first.rows || product->outer != first.outer) return nullptr;
  product->result = const_cast<void*>(values_of(result));
  const unsigned threads = host::torch_threads();
  bool done = false;
  without_gil_if(product->rows * product->inner * product->outer >= least_products_without_gil,
                 [&] { done = kernels::multiply(*product, threads); });
  if (!done) return nullptr;
  ++weights::counts.products;
  return made;
}

// Returns what is to be multiplied. Returns nothing for a call that our kernels do not compute.
std::optional<ProductCall> read_call(ProductForm form, const Arguments& arguments, bool float32_result) {
  PyObject* const* const values = arguments.values;
  const Py_ssize_t count = arguments.positional;
  if (!has_weight(form) || arguments.keywords != nullptr) return std::nullopt;
  ProductCall call{.input = values[0], .weight = values[1], .float32_result = float32_result};
  if (form == ProductForm::addmm) {
    if (count != 3 || values[0] == Py_None) return std::nullopt;
    call.input = values[1];
    call.weight = values[2];
    call.bias = values[0];
    call.wants_matrix = true;
  } else if (form == ProductForm::linear) {
    if (count < 2 || count > 3) return std::nullopt;
    if (count == 3) call.bias = values[2];
    call.is_linear = true;
  } else if (form == ProductForm::mv || form == ProductForm::addmv) {
    const Py_ssize_t matrix = form == ProductForm::addmv ? 1 : 0;
    if (count != matrix + 2 || values[0] == Py_None) return std::nullopt;
    call.input = values[matrix + 1];
    call.weight = values[matrix];
    if (matrix == 1) call.bias = values[0];
    call.is_linear = true;
    call.wants_vector = true;
  } else {
    if (count != 2) return std::nullopt;
    call.wants_matrix = form == ProductForm::mm;
  }
  return call;
}

// Gives a copy back at the end of the scope, also after an exception.
struct GiveBack {
  void operator()(PyObject* copy) const noexcept { tensor::give_back(copy); }
};

}  // namespace

// Multiplies stacks of matrices. The rows of the first one are copied if there are gaps in them.
Owned multiply_batches(const Arguments& arguments, Kind kind, ProductForm form) {
  if (arguments.keywords != nullptr || arguments.positional != 2) return nullptr;
  PyObject* const one = arguments.values[0];
  PyObject* const other = arguments.values[1];
  const bool expands = form == ProductForm::matmul;
  Owned made = multiply_stack(one, other, kind, expands);
  if (made || PyErr_Occurred() != nullptr || !host::is_plain_tensor(one)) return made;
  const std::unique_ptr<PyObject, GiveBack> rows(tensor::copy_in_rows(one, kind).release());
  return rows ? multiply_stack(rows.get(), other, kind, expands) : nullptr;
}

Owned multiply(ProductForm form, const Arguments& arguments, Kind kind, bool float32_result) {
  std::optional<ProductCall> call = read_call(form, arguments, float32_result);
  const bool is_stack = form == ProductForm::bmm && lacks_instructions(kind) && !float32_result;
  if (!(call || is_stack) || !kernels::can_multiply() || !host::can_look_inside() || host::is_traced()) return nullptr;
  if (is_stack) return multiply_batches(arguments, kind, form);
  if (const std::optional<Product> product = product_of(*call, kind)) {
    return is_worth_multiplying(*product) ? multiply_rows(*call, kind, *product) : nullptr;
  }
  if (form == ProductForm::matmul) {
    const std::int32_t dimensions = dimensions_of(call->weight);
    if (dimensions == 1) return multiply(ProductForm::mv, arguments, kind, float32_result);
    if (dimensions > 2 && lacks_instructions(kind) && !float32_result) return multiply_batches(arguments, kind, form);
  }
  // Torch would compute one product for each batch of the input.
  if (!host::is_plain_tensor(call->input)) return nullptr;
  const std::unique_ptr<PyObject, GiveBack> rows(tensor::copy_in_rows(call->input, kind).release());
  if (!rows) return nullptr;
  call->input = rows.get();
  const std::optional<Product> product = product_of(*call, kind);
  return product ? multiply_rows(*call, kind, *product) : nullptr;
}

}  // namespace habana_mp::engine

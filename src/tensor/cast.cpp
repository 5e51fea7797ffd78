#include "tensor/cast.hpp"

#include <algorithm>
#include <cmath>

#include "errors.hpp"
#include "gil.hpp"
#include "host/inside.hpp"
#include "host/tensors.hpp"
#include "kernels/cast.hpp"

namespace habana_mp::tensor {

namespace {

// Below this many elements the kernels never use a second thread, so torch's number of threads is not needed.
constexpr std::int64_t parallel_from = 1 << 15;

NeverDestroyed<Owned> recorded_cast;
NeverDestroyed<Owned> number_in_range;

Owned cast_by_torch(PyObject* tensor, Kind to) {
  if (host::is_plain_tensor(tensor)) return host::convert_by_torch(tensor, to);
  // A subclass may override the method.
  return Owned(
      PyObject_CallMethod(tensor, to == Kind::bf16 ? "bfloat16" : (to == Kind::f16 ? "half" : "float"), nullptr));
}

// True if the gradient of a tracked cast may have another layout than the tensor, which the backward of torch's cast
// rejects.
bool may_change_layout(PyObject* tensor, const CastResult& seen) {
  return seen.by_sparse && host::requires_grad(tensor) && !host::is_traced();
}

// Returns a cast that only the caller needs to see: allocated without torch's dispatcher and filled by one of our
// kernels. Returns null, with no exception set, if the tensor is not suitable.
Owned cast_by_kernel(PyObject* tensor, Kind from, Kind to) {
  DLTensor source;
  void* values = nullptr;
  if (!host::view_on_cpu(tensor, source) || !host::is_of_kind(source, from) || !host::is_contiguous(source)) {
    return nullptr;
  }
  Owned made = host::allocate_like(source, to, values);
  if (made) {
    const std::int64_t count = host::count_in(source);
    ask_for_large_pages(values, bytes_as(to, count));
    convert(static_cast<const char*>(source.data) + source.byte_offset, from, values, to, count);
  }
  return made;
}

}  // namespace

bool is_cast_in_graph(PyObject* tensor) noexcept {
  return host::can_look_inside() && host::is_plain_tensor(tensor) && !host::is_off_cpu(tensor) &&
         host::requires_grad(tensor) && host::grad_is_enabled() && !host::is_traced() && !host::is_negative(tensor);
}

bool must_be_seen(PyObject* tensor, CastResult& seen) {
  if (host::grad_is_enabled() && host::requires_grad(tensor)) {
    seen.recorded = true;
    return true;
  }
  if (host::is_traced()) return true;
  // A DLPack view of a negative tensor lacks its negative bit.
  return host::counts_as_negated(tensor);
}

static void convert_values(const void* source, Kind from, void* target, Kind to, std::int64_t count) {
  const kernels::Job job(source, float_of(from), target, float_of(to), static_cast<std::size_t>(count));
  const unsigned threads = count < parallel_from ? 1 : host::torch_threads();
  without_gil_if(count >= gil_kept_below, [&] { kernels::cast(job, threads); });
}

void set_tracked_cast(PyObject* function) noexcept { *recorded_cast = Owned::borrowed_or_null(function); }
void set_number_in_range(PyObject* function) noexcept { *number_in_range = Owned::borrowed_or_null(function); }

Owned cast_in_block(PyObject* tensor, Kind to) {
  host::Geometry geometry;
  CastResult ignored;
  if (!host::can_look_inside() || !host::is_plain_tensor(tensor)) return nullptr;
  const Kind from = host::kind_of_tensor(tensor);
  const std::int64_t count = host::count_elements(tensor);
  if (!is_floating(from) || from == to || !is_block(bytes_as(to, count))) return nullptr;
  if (must_be_seen(tensor, ignored) || !host::read_geometry(tensor, geometry) || !geometry.is_dense()) return nullptr;
  void* values = nullptr;
  Owned made = tensor_in_block(geometry, to, values);
  if (made) convert(geometry.values, from, values, to, geometry.count());
  return made;
}

kernels::Float float_of(Kind kind) noexcept {
  switch (kind) {
    case Kind::bf16:
      return kernels::Float::bf16;
    case Kind::f16:
      return kernels::Float::f16;
    default:
      return kernels::Float::f32;
  }
}

std::uint64_t bytes_as(Kind kind, std::int64_t count) noexcept {
  return static_cast<std::uint64_t>(count) * kernels::size_of(float_of(kind));
}

static Owned make_cast(PyObject* tensor, Kind from, Kind to, CastResult& seen) {
  const std::int64_t count = host::count_elements(tensor);
  seen.bytes += bytes_as(to, count);
  if (host::can_view() && host::is_plain_tensor(tensor)) {
    if (!must_be_seen(tensor, seen)) {
      Owned made = is_block(bytes_as(to, count)) ? cast_in_block(tensor, to) : nullptr;
      if (!made) made = cast_by_kernel(tensor, from, to);
      if (made) return made;
    } else if (*recorded_cast &&
               (may_change_layout(tensor, seen) || (is_cast_to_block(count) && is_cast_in_graph(tensor)))) {
      const Owned function = Owned::borrowed(recorded_cast->get());
      PyObject* const arguments[] = {tensor, host::dtype_of(to)};
      return Owned(PyObject_Vectorcall(function.get(), arguments, 2, nullptr));
    }
  } else if (!seen.recorded) {
    seen.recorded = host::grad_is_enabled() && host::requires_grad(tensor);
  }
  return cast_by_torch(tensor, to);
}

const Makers untimed_makers{&make_cast, &convert_values};
Makers makers = untimed_makers;

Owned cast_saturated(PyObject* tensor, Kind from, Kind to, CastResult& seen) {
  if (from != Kind::f32) {  // bfloat16 has no value at the end of float16's range
    const Owned wide = cast_by_torch(tensor, Kind::f32);
    return wide ? cast_saturated(wide.get(), Kind::f32, to, seen) : nullptr;
  }
  // To read a value from a device, the processor would have to wait.
  if (*number_in_range && host::is_off_cpu(tensor)) {
    const Owned function = Owned::borrowed(number_in_range->get());
    const Owned made(PyObject_CallFunction(function.get(), "Od", tensor, largest(to)));
    return made ? cast(made.get(), from, to, seen) : nullptr;
  }
  // Changes only a finite value out of range, and only if it can be read.
  Owned item(PyObject_CallMethod(tensor, "item", nullptr));
  const double value = item ? PyFloat_AsDouble(item.get()) : 0.0;
  item.reset();
  drop_error_unless_memory_error();
  const double limit = largest(to);
  if (!std::isfinite(value) || (value <= limit && value >= -limit)) return cast(tensor, from, to, seen);
  const Owned edge(PyObject_CallMethod(tensor, "new_tensor", "d", value > 0 ? limit : -limit));
  return edge ? cast(edge.get(), from, to, seen) : nullptr;
}

double largest(Kind kind) noexcept {
  switch (kind) {
    case Kind::bf16:
      return 3.3895313892515355e38;
    case Kind::f16:
      return 65504.0;
    default:
      return 3.4028234663852886e38;
  }
}

}  // namespace habana_mp::tensor

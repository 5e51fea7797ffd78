#include "accel/products/image_order.hpp"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "host/inside.hpp"
#include "host/tensors.hpp"
#include "kernels/cast.hpp"
#include "tensor/cast.hpp"
#include "tensor/cast_memory.hpp"

namespace habana_mp::accel {

namespace {

constexpr std::int32_t dimensions = 4;
using Sizes = std::array<std::int64_t, dimensions>;
using Strides = std::array<std::int64_t, dimensions>;

Strides strides_of_channels_first(const std::int64_t* sizes) {
  return {sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1};
}
Strides strides_of_channels_last(const std::int64_t* sizes) {
  return {sizes[1] * sizes[2] * sizes[3], 1, sizes[1] * sizes[3], sizes[1]};
}

bool are_images(PyObject* tensor, DLTensor& view) { return host::view_on_cpu(tensor, view) && view.ndim == dimensions; }

// True if the tensor is a batch of images with these sizes, this kind and strides.
bool are_images_like(PyObject* tensor, const Sizes& sizes, Kind kind, DLTensor& view) {
  return are_images(tensor, view) && view.strides != nullptr && host::is_of_kind(view, kind) &&
         std::equal(sizes.begin(), sizes.end(), view.shape);
}

// Copies the images, whose present layout is `from`, to `target` with these strides.
void reorder(const DLTensor& from, void* target, const Strides& strides, Kind kind) {
  const auto bytes = static_cast<std::ptrdiff_t>(tensor::bytes_as(kind, 1));
  std::vector<kernels::Axis> axes;
  axes.reserve(dimensions);
  for (std::int32_t i = 0; i < dimensions; ++i) {
    axes.push_back({static_cast<std::size_t>(from.shape[i]), from.strides[i] * bytes,
                    strides[static_cast<std::size_t>(i)] * bytes});
  }
  const kernels::Job job(static_cast<const char*>(from.data) + from.byte_offset, tensor::float_of(kind), target,
                         tensor::float_of(kind), std::move(axes));
  const unsigned threads = host::torch_threads();
  tensor::run_kernel(host::count_in(from), [&] { kernels::cast(job, threads); });
}

// Returns a new tensor like the images in channels-last order. Returns null, perhaps with an exception set, if that
// fails or if its layout is not the `wanted` one.
Owned make_channels_last(PyObject* images, Kind kind, const DLTensor& wanted) {
  static PyObject* const keywords = checked(PyTuple_Pack(1, interned("memory_format")));
  Owned made = host::empty_in_channels_last(images, keywords);
  host::Geometry geometry;
  const bool fits = made && host::is_exact_tensor(made.get()) && host::kind_of_tensor(made.get()) == kind &&
                    host::read_geometry(made.get(), geometry) && host::has_same_layout(wanted, geometry, true);
  if (!fits) made.reset();
  return made;
}

}  // namespace

bool is_channels_last(PyObject* tensor) noexcept {
  DLTensor view;
  if (!are_images(tensor, view) || view.strides == nullptr) return false;
  const Strides strides = strides_of_channels_last(view.shape);
  return view.shape[1] > 1 && view.shape[2] > 1 && view.shape[3] > 1 &&
         std::equal(strides.begin(), strides.end(), view.strides);
}

bool is_channels_first(PyObject* tensor) noexcept {
  DLTensor view;
  return are_images(tensor, view) && host::is_contiguous(view);
}

Owned channels_last_transient(PyObject* images, Kind kind) {
  DLTensor view;
  if (!host::can_look_inside() || !are_images(images, view) || view.strides == nullptr) return nullptr;
  Sizes sizes{};
  std::copy_n(view.shape, dimensions, sizes.begin());
  Strides strides = strides_of_channels_last(sizes.data());
  DLTensor wanted = view;
  wanted.shape = sizes.data();
  wanted.strides = strides.data();
  Owned memory = tensor::borrow(wanted, kind);
  if (!memory) memory = make_channels_last(images, kind, wanted);  // may run other code
  drop_error();
  if (!memory) return nullptr;
  tensor::Transient made(std::move(memory), true);
  if (!are_images_like(images, sizes, kind, view)) return nullptr;
  reorder(view, const_cast<char*>(host::snapshot_of(made.get()).data), strides, kind);
  return made.take();
}

Owned channels_first(PyObject* images, Kind kind) {
  DLTensor view;
  if (!are_images(images, view)) return nullptr;
  Sizes sizes{};
  std::copy_n(view.shape, dimensions, sizes.begin());
  void* target = nullptr;
  Owned made = host::allocate_like(view, kind, target);  // may run other code
  if (!made || !are_images_like(images, sizes, kind, view)) return nullptr;
  reorder(view, target, strides_of_channels_first(sizes.data()), kind);
  return made;
}

}  // namespace habana_mp::accel

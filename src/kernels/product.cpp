#include "kernels/product.hpp"

#include <algorithm>

#include "kernels/dispatch.hpp"
#include "kernels/threads.hpp"

#if defined(HABANA_MP_AMX)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace habana_mp::kernels {
namespace {

// In multiplications. Measured: below this, waking a thread costs as much as it gains.
constexpr std::size_t threads_from = std::size_t{1} << 19;
constexpr std::size_t arranged_threads_from = std::size_t{1} << 18;  // in elements
// The number of pieces for each thread, so that the threads finish together. The input's rows are divided only if there
// are fewer panels than that.
constexpr std::size_t pieces_per_thread = 4;
// With fewer rows of the input, it is not worth reading a panel of the weight again.
constexpr std::size_t fewest_rows = 24;
constexpr std::size_t rows_of_tile = 16;

std::size_t panels_of(std::size_t outer) { return (outer + panel_rows - 1) / panel_rows; }

struct Arranging {
  const ProductKernels* kernels;
  const std::uint16_t* weight;
  std::uint16_t* arranged;
  std::size_t outer;
  std::size_t inner;
};

void arrange_panels(const void* context, std::size_t begin, std::size_t end) noexcept {
  const auto& work = *static_cast<const Arranging*>(context);
  for (std::size_t i = begin; i < end; ++i) {
    const std::size_t first = i * panel_rows;
    work.kernels->arrange(work.weight + first * work.inner, work.inner, std::min(panel_rows, work.outer - first),
                          work.arranged + first * work.inner);
  }
}

// Two adjacent rows of this weight hold all values of a pair.
void arrange_inner_first(const void* context, std::size_t begin, std::size_t end) noexcept {
  const auto& work = *static_cast<const Arranging*>(context);
  for (std::size_t i = begin; i < end; ++i) {
    const std::size_t first = i * panel_rows;
    const std::size_t count = std::min(panel_rows, work.outer - first);
    const std::uint16_t* from = work.weight + first;
    std::uint16_t* to = work.arranged + first * work.inner;
    for (std::size_t k = 0; k < work.inner; k += 2, from += 2 * work.outer, to += 2 * count) {
      for (std::size_t j = 0; j < count; ++j) {
        to[2 * j] = from[j];
        to[2 * j + 1] = from[work.outer + j];
      }
    }
  }
}

using Multiply = void (*)(const PanelProduct& product) noexcept;

Multiply kernel_for(Order order) {
  const ProductKernels& kernels = *chosen().products;
  switch (order) {
    case Order::tiles:
      return kernels.multiply_by_tiles;
    case Order::tiles_by_fma:
      return kernels.multiply_as_tiles;
    case Order::dots:
      return kernels.multiply_by_dots;
    default:
      return kernels.multiply;
  }
}

// Requests the operating system's permission to use tiles, for all threads of the process and for its forked children.
// True if it is granted.
bool may_use_tiles() {
#if defined(HABANA_MP_AMX)
  constexpr int request_permission = 0x1023;  // ARCH_REQ_XCOMP_PERM, which older headers do not define
  constexpr int tile_data = 18;
  static const bool granted = syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
  return granted;
#else
  return false;
#endif
}

struct Multiplying {
  Multiply multiply;
  const Product* product;
  std::size_t row_pieces;  // the input's rows are divided into this many pieces

  // Only the last piece has a partly filled tile.
  [[nodiscard]] std::size_t first_row_of(std::size_t piece) const {
    if (piece == row_pieces) return product->rows;
    const std::size_t row = product->rows * piece / row_pieces;
    return product->sums.order == Order::tiles ? row / rows_of_tile * rows_of_tile : row;
  }
};

void multiply_pieces(const void* context, std::size_t begin, std::size_t end) noexcept {
  const auto& work = *static_cast<const Multiplying*>(context);
  const Product& product = *work.product;
  const auto* const input = static_cast<const std::uint16_t*>(product.input);
  const auto* const weight = static_cast<const std::uint16_t*>(product.weight);
  const auto* const bias = static_cast<const std::uint16_t*>(product.bias);
  auto* const result = static_cast<std::uint16_t*>(product.result);
  for (std::size_t i = begin; i < end; ++i) {
    const std::size_t first = i / work.row_pieces * panel_rows;
    const std::size_t piece = i % work.row_pieces;
    const std::size_t row = work.first_row_of(piece);
    work.multiply({
        .input = input + row * product.input_step,
        .input_step = product.input_step,
        .rows = work.first_row_of(piece + 1) - row,
        .inner = product.inner,
        .sums = product.sums,
        .panel = weight + first * product.inner,
        .outer = std::min(panel_rows, product.outer - first),
        .bias = bias == nullptr ? nullptr : bias + first,
        .result = result + row * product.outer + first,
        .result_step = product.outer,
    });
  }
}

}  // namespace

bool can_multiply() noexcept { return chosen().products != nullptr; }

bool has_tiles() noexcept { return can_multiply() && chosen().products->multiply_by_tiles != nullptr; }

bool can_sum(Order order) noexcept {
  return can_multiply() && kernel_for(order) != nullptr && (order != Order::tiles || may_use_tiles());
}

void arrange(const void* weight, std::size_t outer, std::size_t inner, bool inner_first, void* arranged,
             unsigned threads) noexcept {
  const Arranging work{
      .kernels = chosen().products,
      .weight = static_cast<const std::uint16_t*>(weight),
      .arranged = static_cast<std::uint16_t*>(arranged),
      .outer = outer,
      .inner = inner,
  };
  const Body arrange_some = inner_first ? arrange_inner_first : arrange_panels;
  const std::size_t panels = panels_of(outer);
  if (threads > 1 && outer * inner >= arranged_threads_from) {
    parallel_for(panels, 1, threads, arrange_some, &work);
  } else {
    arrange_some(&work, 0, panels);
  }
}

void multiply(const Product& product, unsigned threads) noexcept {
  const std::size_t panels = panels_of(product.outer);
  Multiplying work{.multiply = kernel_for(product.sums.order), .product = &product, .row_pieces = 1};
  if (threads <= 1 || product.rows * product.inner * product.outer < threads_from) {
    multiply_pieces(&work, 0, panels);
    return;
  }
  const std::size_t wanted = (pieces_per_thread * threads + panels - 1) / panels;
  work.row_pieces = std::clamp<std::size_t>(product.rows / fewest_rows, 1, wanted);
  parallel_for(panels * work.row_pieces, 1, threads, multiply_pieces, &work);
}

}  // namespace habana_mp::kernels

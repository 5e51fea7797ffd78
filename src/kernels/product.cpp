#include "kernels/product.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "kernels/dispatch.hpp"
#include "kernels/threads.hpp"
#include "kernels/transpose.hpp"

#if defined(HABANA_MP_AMX)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace habana_mp::kernels {
namespace {

// In multiplications. Measured: below this, waking a thread costs as much as it gains.
constexpr std::size_t threads_from = std::size_t{1} << 19;
// The number of pieces for each thread, so that the threads finish together.
constexpr std::size_t pieces_per_thread = 4;
// From this many rows on, it is faster to bring the input into panels and to read the weight as rows.
constexpr std::size_t rows_for_panels = 16;
// Rows of the weight that take their turn with all panels of the input.
constexpr std::size_t rows_at_once = 128;
constexpr std::size_t rows_of_tile = 16;

std::size_t parts_of(std::size_t whole, std::size_t part) { return (whole + part - 1) / part; }

// Memory that a thread keeps for its next product.
class Scratch {
 public:
  Scratch() = default;
  ~Scratch() { std::free(memory_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // Returns null if there is no memory. Ends the use of what was returned before.
  std::uint16_t* of(std::size_t elements) noexcept {
    if (elements <= elements_) return memory_;
    std::free(memory_);
    constexpr std::size_t line = 64;
    elements_ = 0;
    memory_ = static_cast<std::uint16_t*>(std::aligned_alloc(line, parts_of(elements * sizeof *memory_, line) * line));
    if (memory_ != nullptr) elements_ = elements;
    return memory_;
  }

 private:
  std::uint16_t* memory_ = nullptr;
  std::size_t elements_ = 0;
};
thread_local Scratch scratch;

using Multiply = void (*)(const PanelProduct& product) noexcept;

Multiply kernel_for(Order order) {
  const ProductKernels& kernels = *chosen().products;
  switch (order) {
    case Order::tiles:
      return kernels.multiply_by_tiles;
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

struct Work {
  const Product* product;
  Multiply multiply;
  const std::uint16_t* panels;  // of the input
  bool copies;                  // the weight's columns to a panel
  mutable std::atomic<bool> failed{false};

  [[nodiscard]] const std::uint16_t* input() const { return static_cast<const std::uint16_t*>(product->input); }
  [[nodiscard]] const std::uint16_t* weight() const { return static_cast<const std::uint16_t*>(product->weight); }
  [[nodiscard]] const std::uint16_t* bias() const { return static_cast<const std::uint16_t*>(product->bias); }
  [[nodiscard]] std::uint16_t* result() const { return static_cast<std::uint16_t*>(product->result); }
};

// Multiplies rows of the weight, in units of a tile's rows, with all panels of the input. That gives the result's
// columns as rows, so they are transposed.
void multiply_rows_of_weight(const void* context, std::size_t begin, std::size_t end) noexcept {
  const auto& work = *static_cast<const Work*>(context);
  const Product& product = *work.product;
  alignas(64) std::uint16_t part[rows_at_once * panel_columns];
  const std::size_t last = std::min(end * rows_of_tile, product.outer);
  for (std::size_t row = begin * rows_of_tile; row < last; row += rows_at_once) {
    const std::size_t rows = std::min(rows_at_once, last - row);
    for (std::size_t column = 0; column < product.rows; column += panel_columns) {
      const std::size_t columns = std::min(panel_columns, product.rows - column);
      work.multiply({
          .rows = work.weight() + row * product.weight_step,
          .row_step = product.weight_step,
          .row_count = rows,
          .inner = product.inner,
          .sums = product.sums,
          .panel = work.panels + column * product.inner,
          .column_step = 0,
          .columns = columns,
          .row_bias = product.bias == nullptr ? nullptr : work.bias() + row,
          .column_bias = nullptr,
          .result = part,
          .result_step = columns,
      });
      constexpr auto size = static_cast<std::ptrdiff_t>(sizeof part[0]);
      transpose<std::uint16_t>(reinterpret_cast<const unsigned char*>(part),
                               static_cast<std::ptrdiff_t>(columns) * size,
                               reinterpret_cast<unsigned char*>(work.result() + column * product.result_step + row),
                               static_cast<std::ptrdiff_t>(product.result_step) * size, rows, columns);
    }
  }
}

// Multiplies all rows of the input with columns of the weight. For the kernels that need it, the columns are copied to
// a panel.
void multiply_rows_of_input(const void* context, std::size_t begin, std::size_t end) noexcept {
  const auto& work = *static_cast<const Work*>(context);
  const Product& product = *work.product;
  const ProductKernels& kernels = *chosen().products;
  std::uint16_t* const panel = work.copies ? scratch.of(panel_columns * product.inner) : nullptr;
  if (work.copies && panel == nullptr) {
    work.failed.store(true, std::memory_order_relaxed);
    return;
  }
  for (std::size_t i = begin; i < end; ++i) {
    const std::size_t column = i * panel_columns;
    const std::size_t columns = std::min(panel_columns, product.outer - column);
    const std::uint16_t* const first = work.weight() + (product.inner_first ? column : column * product.weight_step);
    if (work.copies) {
      (product.inner_first ? kernels.arrange_rows : kernels.arrange)(first, product.weight_step, product.inner, columns,
                                                                     panel);
    }
    work.multiply({
        .rows = work.input(),
        .row_step = product.input_step,
        .row_count = product.rows,
        .inner = product.inner,
        .sums = product.sums,
        .panel = work.copies ? panel : first,
        .column_step = product.weight_step,
        .columns = columns,
        .row_bias = nullptr,
        .column_bias = product.bias == nullptr ? nullptr : work.bias() + column,
        .result = work.result() + column,
        .result_step = product.result_step,
    });
  }
}

// Returns the input in panels, in the memory of this thread. Null if no memory is left.
const std::uint16_t* arranged_input(const Product& product) {
  std::uint16_t* const panels = scratch.of(product.rows * product.inner);
  const auto* const input = static_cast<const std::uint16_t*>(product.input);
  for (std::size_t row = 0; panels != nullptr && row < product.rows; row += panel_columns) {
    chosen().products->arrange(input + row * product.input_step, product.input_step, product.inner,
                               std::min(panel_columns, product.rows - row), panels + row * product.inner);
  }
  return panels;
}

}  // namespace

bool can_multiply() noexcept { return chosen().products != nullptr; }

bool has_tiles() noexcept { return can_multiply() && chosen().products->multiply_by_tiles != nullptr; }

bool can_sum(Order order) noexcept {
  return can_multiply() && kernel_for(order) != nullptr && (order != Order::tiles || may_use_tiles());
}

bool multiply(const Product& product, unsigned threads) noexcept {
  const Order order = product.sums.order;
  const bool has_few_rows = order == Order::pairs && product.rows < rows_for_panels;
  const bool has_input_in_panels =
      !product.inner_first && (order == Order::tiles || (order == Order::pairs && !has_few_rows));
  const bool copies = !has_input_in_panels && (product.inner_first || !has_few_rows);
  Work work{.product = &product,
            .multiply = has_input_in_panels || copies ? kernel_for(order) : chosen().products->multiply_few_rows,
            .panels = has_input_in_panels ? arranged_input(product) : nullptr,
            .copies = copies};
  if (has_input_in_panels && work.panels == nullptr) return false;
  const std::size_t part = has_input_in_panels ? rows_of_tile : panel_columns;
  const std::size_t parts = parts_of(product.outer, part);
  const Body body = has_input_in_panels ? multiply_rows_of_weight : multiply_rows_of_input;
  if (threads <= 1 || product.rows * product.inner * product.outer < threads_from) {
    body(&work, 0, parts);
  } else {
    const std::size_t grain = std::clamp<std::size_t>(parts / (pieces_per_thread * threads), 1, rows_at_once / part);
    parallel_for(parts, grain, threads, body, &work);
  }
  return !work.failed.load(std::memory_order_relaxed);
}

}  // namespace habana_mp::kernels

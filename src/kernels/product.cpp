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
// With at most this many rows, the columns of a weight are not brought into panels.
constexpr std::size_t few_rows = 8;
// From this many rows on tiles are faster. The input is brought into panels for them, and the weight is read as rows.
constexpr std::size_t rows_for_tiles = 16;
// The rows of the input that a thread computes with a panel of columns. Their sums stay in its caches.
constexpr std::size_t least_rows_of_share = 48;
constexpr std::size_t most_rows_of_share = 512;
// Rows of the weight that take their turn with all panels of the input.
constexpr std::size_t rows_at_once = 128;
constexpr std::size_t rows_of_tile = 16;
// With more rows than this the tiles of another library are as fast.
constexpr std::size_t most_rows_with_tiles = 32;
// Columns of the result that a thread computes at once in float32.
constexpr std::size_t columns_at_once = 128;

std::size_t parts_of(std::size_t whole, std::size_t part) { return (whole + part - 1) / part; }

// Memory that a thread keeps for its next product.
class Scratch {
 public:
  Scratch() = default;
  ~Scratch() { std::free(memory_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // Returns null if there is no memory. Ends the use of what was returned before.
  void* of(std::size_t bytes) noexcept {
    if (bytes <= bytes_) return memory_;
    std::free(memory_);
    constexpr std::size_t line = 64;
    bytes_ = 0;
    memory_ = std::aligned_alloc(line, parts_of(bytes, line) * line);
    if (memory_ != nullptr) bytes_ = bytes;
    return memory_;
  }

 private:
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
};
thread_local Scratch scratch;

// Requests the operating system's permission to use tiles, for all threads of the process and for its forked children.
// From then on it refuses small signal stacks to this process. True if it is granted.
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
  const Table* table;
  const Product* product;
  std::size_t first_row = 0;
  std::size_t rows = 0;
  const std::uint16_t* panels = nullptr;  // of the input
  std::size_t width = 0;                  // of the weight that a thread computes at once
  std::size_t shares = 1;                 // of the rows
  mutable std::atomic<bool> failed{false};

  [[nodiscard]] const std::uint16_t* input() const { return static_cast<const std::uint16_t*>(product->input); }
  [[nodiscard]] const std::uint16_t* weight() const { return static_cast<const std::uint16_t*>(product->weight); }
  // The bias of the kernels; a bias in float32 is added to their sums.
  [[nodiscard]] const std::uint16_t* bias() const {
    return product->float32_result ? nullptr : static_cast<const std::uint16_t*>(product->bias);
  }
  [[nodiscard]] std::uint16_t* result() const { return static_cast<std::uint16_t*>(product->result); }
  [[nodiscard]] float* sums() const { return static_cast<float*>(product->result); }

  // Adds a bias in float32 to some rows and columns of the sums.
  void add_bias(std::size_t row, std::size_t count, std::size_t column, std::size_t columns) const {
    if (!product->float32_result || product->bias == nullptr) return;
    const float* const added = static_cast<const float*>(product->bias) + column;
    for (const std::size_t end = row + count; row < end; ++row) {
      float* const to = sums() + row * product->result_step + column;
      for (std::size_t i = 0; i < columns; ++i) to[i] += added[i];
    }
  }

  // Calls `body` for all parts. Returns false if it found no memory.
  bool run(std::size_t parts, std::size_t most_at_once, unsigned threads, Body body) const {
    if (threads <= 1 || product->rows * product->inner * product->outer < threads_from) {
      body(this, 0, parts);
    } else {
      const std::size_t grain = std::clamp<std::size_t>(parts / (pieces_per_thread * threads), 1, most_at_once);
      parallel_for(parts, grain, threads, body, this);
    }
    return !failed.load(std::memory_order_relaxed);
  }
};

// ---- in float32
// ------------------------------------------------------------------------------------------------------

// Computes columns of the result, in units of a panel.
void multiply_fused_columns(const void* context, std::size_t begin, std::size_t end) noexcept {
  const auto& work = *static_cast<const Work*>(context);
  const FusedKernels& kernels = *work.table->fused;
  const std::size_t most_panels = columns_at_once / kernels.panel_width;
  const std::size_t columns = std::min(end - begin, most_panels) * kernels.panel_width;
  const std::size_t in_panels = (columns + kernels.most_rows) * 2 * sum_block;
  const std::size_t in_registers = std::max(work.rows * work.product->inner, columns);
  const std::size_t floats =
      work.rows * columns + (work.rows > kernels.few_rows ? in_panels : std::max(in_panels, in_registers));
  auto* const memory = static_cast<float*>(scratch.of(floats * sizeof(float)));
  if (memory == nullptr) {
    work.failed.store(true, std::memory_order_relaxed);
    return;
  }
  const auto kind = static_cast<std::size_t>(work.product->kind);
  constexpr auto f32 = static_cast<std::size_t>(Float::f32);
  for (std::size_t panel = begin; panel < end; panel += most_panels) {
    kernels.multiply(*work.product, {.row = work.first_row,
                                     .rows = work.rows,
                                     .column = panel * kernels.panel_width,
                                     .panels = std::min(end - panel, most_panels),
                                     .panel_width = kernels.panel_width,
                                     .scratch = memory,
                                     .widen = work.table->convert[kind][f32],
                                     .narrow = work.table->convert[f32][kind]});
  }
}

bool multiply_fused(const Table& table, const Product& product, unsigned threads) {
  const std::size_t shares = parts_of(product.rows, most_rows_of_share);
  for (std::size_t i = 0; i < shares; ++i) {
    const std::size_t row = product.rows * i / shares;
    const Work work{
        .table = &table, .product = &product, .first_row = row, .rows = product.rows * (i + 1) / shares - row};
    const std::size_t width = table.fused->panel_width;
    if (!work.run(parts_of(product.outer, width), columns_at_once / width, threads, multiply_fused_columns)) {
      return false;
    }
  }
  return true;
}

// ---- in pairs, and by tiles
// ------------------------------------------------------------------------------------------

// Multiplies rows of the weight, in units of a tile's rows, with all panels of the input. That gives the result's
// columns as rows, so they are transposed.
void multiply_rows_of_weight(const void* context, std::size_t begin, std::size_t end) noexcept {
  const auto& work = *static_cast<const Work*>(context);
  const Product& product = *work.product;
  union {
    alignas(64) std::uint16_t rounded[rows_at_once * panel_columns];
    float sums[rows_at_once * panel_columns];
  } part;
  const std::size_t last = std::min(end * rows_of_tile, product.outer);
  for (std::size_t row = begin * rows_of_tile; row < last; row += rows_at_once) {
    const std::size_t rows = std::min(rows_at_once, last - row);
    for (std::size_t column = 0; column < product.rows; column += panel_columns) {
      const std::size_t columns = std::min(panel_columns, product.rows - column);
      work.table->products->multiply_by_tiles({
          .rows = work.weight() + row * product.weight_step,
          .row_step = product.weight_step,
          .row_count = rows,
          .inner = product.inner,
          .panel = work.panels + column * product.inner,
          .column_step = 0,
          .inner_first = false,
          .columns = columns,
          .row_bias = work.bias() == nullptr ? nullptr : work.bias() + row,
          .column_bias = nullptr,
          .result = part.rounded,
          .sums = product.float32_result ? part.sums : nullptr,
          .result_step = columns,
          .scratch = nullptr,
      });
      const auto transposed = [&]<class T>(const T* from, T* to) {
        constexpr auto size = static_cast<std::ptrdiff_t>(sizeof(T));
        transpose<T>(reinterpret_cast<const unsigned char*>(from), static_cast<std::ptrdiff_t>(columns) * size,
                     reinterpret_cast<unsigned char*>(to + column * product.result_step + row),
                     static_cast<std::ptrdiff_t>(product.result_step) * size, rows, columns);
      };
      if (product.float32_result) {
        transposed(part.sums, work.sums());
      } else {
        transposed(part.rounded, work.result());
      }
    }
    work.add_bias(0, product.rows, row, rows);
  }
}

// Multiplies shares of the input's rows with columns of the weight: all shares with the first columns, then with the
// next ones.
void multiply_rows_of_input(const void* context, std::size_t begin, std::size_t end) noexcept {
  const auto& work = *static_cast<const Work*>(context);
  const Product& product = *work.product;
  const bool has_few_rows = product.rows <= few_rows && !product.inner_first;
  const std::size_t most = parts_of(product.rows, work.shares);
  void* const memory = has_few_rows ? nullptr : scratch.of(PanelProduct::scratch_bytes(most));
  if (!has_few_rows && memory == nullptr) {
    work.failed.store(true, std::memory_order_relaxed);
    return;
  }
  for (std::size_t i = begin; i < end; ++i) {
    const std::size_t row = product.rows * (i % work.shares) / work.shares;
    const std::size_t rows = product.rows * (i % work.shares + 1) / work.shares - row;
    const std::size_t column = i / work.shares * work.width;
    const std::size_t columns = std::min(work.width, product.outer - column);
    const std::size_t to = row * product.result_step + column;
    (has_few_rows ? work.table->products->multiply_few_rows : work.table->products->multiply)({
        .rows = work.input() + row * product.input_step,
        .row_step = product.input_step,
        .row_count = rows,
        .inner = product.inner,
        .panel = work.weight() + column * (product.inner_first ? 1 : product.weight_step),
        .column_step = product.weight_step,
        .inner_first = product.inner_first,
        .columns = columns,
        .row_bias = nullptr,
        .column_bias = work.bias() == nullptr ? nullptr : work.bias() + column,
        .result = work.result() + to,
        .sums = product.float32_result ? work.sums() + to : nullptr,
        .result_step = product.result_step,
        .scratch = memory,
    });
    work.add_bias(row, rows, column, columns);
  }
}

// Returns the input in panels, in the memory of this thread. Null if no memory is left.
const std::uint16_t* arranged_input(const ProductKernels& kernels, const Product& product) {
  const auto* const input = static_cast<const std::uint16_t*>(product.input);
  auto* const panels = static_cast<std::uint16_t*>(scratch.of(product.rows * product.inner * sizeof *input));
  for (std::size_t row = 0; panels != nullptr && row < product.rows; row += panel_columns) {
    kernels.arrange(input + row * product.input_step, product.input_step, product.inner,
                    std::min(panel_columns, product.rows - row), panels + row * product.inner);
  }
  return panels;
}

bool multiply_pairs(const Table& table, const Product& product, unsigned threads) {
  const ProductKernels& kernels = *table.products;
  if (!product.inner_first && product.rows >= rows_for_tiles && kernels.multiply_by_tiles != nullptr &&
      may_use_tiles()) {
    const Work work{.table = &table, .product = &product, .panels = arranged_input(kernels, product)};
    return work.panels != nullptr && work.run(parts_of(product.outer, rows_of_tile), rows_at_once / rows_of_tile,
                                              threads, multiply_rows_of_weight);
  }
  // In panels of equal width, and in as many shares as the threads need.
  const std::size_t panels = parts_of(product.outer, panel_columns);
  const std::size_t width = parts_of(parts_of(product.outer, panels), rows_of_tile) * rows_of_tile;
  const std::size_t wanted =
      std::min(parts_of(pieces_per_thread * threads, panels), product.rows / least_rows_of_share);
  const std::size_t shares = std::max(parts_of(product.rows, most_rows_of_share), wanted);
  const Work work{.table = &table, .product = &product, .width = width, .shares = shares};
  return work.run(parts_of(product.outer, width) * shares, 2 * shares, threads, multiply_rows_of_input);
}

}  // namespace

bool can_multiply() noexcept { return chosen().fused != nullptr; }

bool multiplies_bfloat16() noexcept { return chosen().multiplies_bfloat16; }

std::size_t most_rows(Float kind) noexcept {
  constexpr std::size_t any = ~std::size_t{0};
  if (kind != Float::bf16 || !chosen().multiplies_bfloat16) return any;
  // With few rows memory decides.
  if (chosen().products == nullptr) return chosen().fused->few_rows;
  return chosen().products->multiply_by_tiles == nullptr ? any : most_rows_with_tiles;
}

bool multiply_with(const Table& table, const Product& product, unsigned threads) noexcept {
  const bool in_pairs = table.products != nullptr && product.kind == Float::bf16 && product.inner % 2 == 0;
  return (in_pairs ? multiply_pairs : multiply_fused)(table, product, threads);
}

bool multiply(const Product& product, unsigned threads) noexcept { return multiply_with(chosen(), product, threads); }

bool multiply_each(std::span<const Product> products, unsigned threads) noexcept {
  if (products.size() < threads) {
    return std::ranges::all_of(products, [=](const Product& one) { return multiply(one, threads); });
  }
  struct Each {
    std::span<const Product> products;
    mutable std::atomic<bool> failed{false};
  };
  const Each each{products};
  const Body body = [](const void* context, std::size_t begin, std::size_t end) noexcept {
    const auto& all = *static_cast<const Each*>(context);
    for (; begin < end; ++begin) {
      if (!multiply(all.products[begin], 1)) all.failed.store(true, std::memory_order_relaxed);
    }
  };
  const Product& one = products.front();
  if (threads <= 1 || products.size() * one.rows * one.inner * one.outer < threads_from) {
    body(&each, 0, products.size());
  } else {
    parallel_for(products.size(), std::max<std::size_t>(products.size() / (pieces_per_thread * threads), 1), threads,
                 body, &each);
  }
  return !each.failed.load(std::memory_order_relaxed);
}

}  // namespace habana_mp::kernels

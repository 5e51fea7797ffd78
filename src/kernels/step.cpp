#include "kernels/step.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/dispatch.hpp"
#include "kernels/threads.hpp"

namespace habana_mp::kernels {
namespace {

// In elements. What lies in the nearest cache when it is cast to lower precision, all of a step's arrays beside it.
constexpr std::size_t chunk = std::size_t{1} << 10;
constexpr std::size_t piece = std::size_t{1} << 14;
// Every weight begins at a multiple of it, so that no two threads write to one line of the cache.
constexpr std::size_t alignment = 64;
constexpr std::size_t threads_from = std::size_t{1} << 16;  // measured: below, waking a thread costs what it gains

template <class Numbers>
struct Batch {
  const Table* table;
  std::span<const Weight<Numbers>> weights;
  bool stream;
};

void run_kernel(const StepKernels& kernels, const AdamNumbers& numbers, const StepArrays& arrays, std::size_t count) {
  kernels.adam(numbers, arrays, count);
}
void run_kernel(const StepKernels& kernels, const SgdNumbers& numbers, const StepArrays& arrays, std::size_t count) {
  kernels.sgd(numbers, arrays, count);
}

StepArrays from(const StepArrays& arrays, std::size_t first) {
  const auto after = [first](float* array) { return array != nullptr ? array + first : nullptr; };
  return {after(arrays.param), after(arrays.grad), after(arrays.first), after(arrays.second), after(arrays.largest)};
}

template <class Numbers>
void run_weight(const Batch<Numbers>& batch, const Weight<Numbers>& weight, std::size_t first, std::size_t end) {
  const Kernel cast =
      batch.table->convert[static_cast<std::size_t>(Float::f32)][static_cast<std::size_t>(weight.lower_type)];
  for (std::size_t at = first; at < end; at += chunk) {
    const std::size_t count = std::min(chunk, end - at);
    const StepArrays arrays = from(weight.arrays, at);
    run_kernel(*batch.table->steps, weight.numbers, arrays, count);
    if (weight.lower != nullptr) {
      cast(arrays.param, static_cast<unsigned char*>(weight.lower) + at * size_of(weight.lower_type), count,
           batch.stream);
    }
  }
}

template <class Numbers>
void run(const void* context, std::size_t begin, std::size_t end) noexcept {
  const auto& batch = *static_cast<const Batch<Numbers>*>(context);
  auto weight = std::upper_bound(batch.weights.begin(), batch.weights.end(), begin,
                                 [](std::size_t at, const Weight<Numbers>& other) { return at < other.begin; });
  for (--weight; weight != batch.weights.end() && weight->begin < end; ++weight) {
    const std::size_t first = begin > weight->begin ? begin - weight->begin : 0;
    run_weight(batch, *weight, std::min(first, weight->count), std::min(end - weight->begin, weight->count));
  }
}

template <class Numbers>
void step_all(std::span<Weight<Numbers>> weights, unsigned threads) noexcept {
  std::size_t total = 0;
  std::size_t bytes = 0;
  for (Weight<Numbers>& weight : weights) {
    weight.begin = total;
    total += (weight.count + alignment - 1) / alignment * alignment;
    bytes += weight.count * sizeof(float);
  }
  if (total == 0) {
    return;
  }
  // The weights and their gradients are read, at least.
  const Batch<Numbers> batch{&chosen(), weights, is_worth_streaming(2 * bytes, bytes / 2, threads)};
  if (threads > 1 && total >= threads_from) {
    parallel_for(total, piece, threads, run<Numbers>, &batch);
  } else {
    run<Numbers>(&batch, 0, total);
  }
}

}  // namespace

AdamNumbers Adam::numbers(double step) const noexcept {
  const double correction1 = 1 - std::pow(beta1, step);
  const double correction2 = 1 - std::pow(beta2, step);
  return {
      .scale = static_cast<float>(grad_scale),
      .sign = maximize ? -1.0F : 1.0F,
      .l2 = decoupled ? 0.0F : static_cast<float>(weight_decay),
      .decay = decoupled ? static_cast<float>(1 - lr * weight_decay) : 1.0F,
      .blend = static_cast<float>(1 - beta1),
      .beta2 = static_cast<float>(beta2),
      .square = static_cast<float>(1 - beta2),
      .root = static_cast<float>(std::sqrt(correction2)),
      .eps = static_cast<float>(eps),
      .rate = static_cast<float>(-(lr / correction1)),
      .scaled = scaled,
  };
}

SgdNumbers Sgd::numbers(bool begins) const noexcept {
  return {
      .scale = static_cast<float>(grad_scale),
      .sign = maximize ? -1.0F : 1.0F,
      .l2 = static_cast<float>(weight_decay),
      .momentum = static_cast<float>(momentum),
      .blend = static_cast<float>(1 - dampening),
      .rate = static_cast<float>(-lr),
      .scaled = scaled,
      .decays = weight_decay != 0,
      .nesterov = nesterov,
      .begins = begins,
  };
}

void step(std::span<Weight<AdamNumbers>> weights, unsigned threads) noexcept { step_all(weights, threads); }

void step(std::span<Weight<SgdNumbers>> weights, unsigned threads) noexcept { step_all(weights, threads); }

}  // namespace habana_mp::kernels

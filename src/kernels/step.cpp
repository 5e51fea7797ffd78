#include "kernels/step.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/dispatch.hpp"
#include "kernels/threads.hpp"

namespace habana_mp::kernels {
namespace {

// In elements. All arrays of a step fit in the first-level cache, where the chunk still is when it is cast to lower
// precision.
constexpr std::size_t chunk = std::size_t{1} << 10;
constexpr std::size_t piece = std::size_t{1} << 14;
// Every weight begins at a multiple of this, so that no two threads write to the same cache line.
constexpr std::size_t alignment = 64;
constexpr std::size_t threads_from = std::size_t{1} << 16;  // measured: below, waking a thread costs what it gains

StepArrays from(const StepArrays& arrays, std::size_t first) {
  const auto after = [first](float* array) { return array != nullptr ? array + first : nullptr; };
  return {after(arrays.param), after(arrays.grad), after(arrays.first), after(arrays.second), after(arrays.largest)};
}

// Sets each weight's offset among all weights, at multiples of `every`. Returns the total length.
template <class Numbers>
std::size_t place(std::span<Weight<Numbers>> weights, std::size_t every) {
  std::size_t total = 0;
  for (Weight<Numbers>& weight : weights) {
    weight.begin = total;
    total += (weight.count + every - 1) / every * every;
  }
  return total;
}

// Calls `body(weight, arrays, first, count)` chunk by chunk for all weights, whose offsets are set. If the offsets are
// multiples of a chunk, every chunk but the last of a weight has its full length.
template <class Numbers, class Body>
void over_chunks(std::span<const Weight<Numbers>> weights, std::size_t total, unsigned threads,
                 const Body& body) noexcept {
  struct Context {
    std::span<const Weight<Numbers>> weights;
    const Body& body;
  };
  const auto run = [](const void* context, std::size_t begin, std::size_t end) noexcept {
    const auto& [all, call] = *static_cast<const Context*>(context);
    auto weight = std::upper_bound(all.begin(), all.end(), begin,
                                   [](std::size_t at, const Weight<Numbers>& other) { return at < other.begin; });
    for (--weight; weight != all.end() && weight->begin < end; ++weight) {
      const std::size_t last = std::min(end - weight->begin, weight->count);
      for (std::size_t at = begin > weight->begin ? begin - weight->begin : 0; at < last; at += chunk) {
        call(*weight, from(weight->arrays, at), at, std::min(chunk, last - at));
      }
    }
  };
  const Context context{weights, body};
  if (total == 0) return;
  if (threads > 1 && total >= threads_from) {
    parallel_for(total, piece, threads, run, &context);
  } else {
    run(&context, 0, total);
  }
}

template <class Numbers>
std::span<const Weight<Numbers>> read_only(std::span<Weight<Numbers>> weights) {
  return weights;
}

// Runs the kernel on all weights, and writes the lowered copies in the same pass.
template <class Numbers>
void write_weights(std::span<Weight<Numbers>> weights, unsigned threads,
                   void (*kernel)(const Numbers&, const StepArrays&, std::size_t) noexcept) noexcept {
  const std::size_t total = place(weights, alignment);
  const Table& table = chosen();
  std::size_t bytes = 0;
  for (const Weight<Numbers>& weight : weights) bytes += weight.count * sizeof(float);
  // At least the weights and their gradients are read.
  const bool stream = is_worth_streaming(2 * bytes, bytes / 2, threads);
  over_chunks(read_only(weights), total, threads,
              [&](const Weight<Numbers>& weight, const StepArrays& arrays, std::size_t first, std::size_t count) {
                kernel(weight.numbers, arrays, count);
                if (weight.lower == nullptr) return;
                auto* lower = static_cast<unsigned char*>(weight.lower) + first * size_of(weight.lower_type);
                const auto type = static_cast<std::size_t>(weight.lower_type);
                table.convert[static_cast<std::size_t>(Float::f32)][type](arrays.param, lower, count, stream);
              });
}

// Sums the results of `body` over the chunks of each weight, in the order of the chunks, whichever thread computed
// them.
template <class Numbers, class Body>
std::vector<Squares> sums_over(std::span<Weight<Numbers>> weights, unsigned threads, const Body& body) {
  const std::size_t total = place(weights, chunk);
  std::vector<Squares> of_chunks(total / chunk);
  std::vector<Squares> sums(weights.size());
  over_chunks(read_only(weights), total, threads,
              [&](const Weight<Numbers>& weight, const StepArrays& arrays, std::size_t first, std::size_t count) {
                of_chunks[(weight.begin + first) / chunk] = body(weight.numbers, arrays, count);
              });
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const std::size_t begin = weights[i].begin / chunk;
    for (std::size_t at = begin; at < begin + (weights[i].count + chunk - 1) / chunk; ++at) {
      sums[i].param += of_chunks[at].param;
      sums[i].other += of_chunks[at].other;
    }
  }
  return sums;
}

}  // namespace

AdamNumbers Adam::numbers(double step) const noexcept {
  const double correction1 = corrects ? 1 - std::pow(beta1, step) : 1;
  const double correction2 = corrects ? 1 - std::pow(beta2, step) : 1;
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

AdagradNumbers Adagrad::numbers(double step) const noexcept {
  return {
      .sign = maximize ? -1.0F : 1.0F,
      .l2 = static_cast<float>(weight_decay),
      .eps = static_cast<float>(eps),
      .rate = static_cast<float>(-(lr / (1 + (step - 1) * lr_decay))),
      .decays = weight_decay != 0,
  };
}

LambNumbers Lamb::numbers(double step) const noexcept {
  return {
      .scale = static_cast<float>(grad_scale),
      .l2 = decoupled ? 0.0F : static_cast<float>(weight_decay),
      .beta1 = static_cast<float>(beta1),
      .blend = averages_gradient ? static_cast<float>(1 - beta1) : 1.0F,
      .beta2 = static_cast<float>(beta2),
      .square = static_cast<float>(1 - beta2),
      .correction = corrects ? static_cast<float>(1 / (1 - std::pow(beta1, step))) : 1.0F,
      .square_correction = corrects ? static_cast<float>(1 / (1 - std::pow(beta2, step))) : 1.0F,
      .eps = static_cast<float>(eps),
      .decay = decoupled ? static_cast<float>(weight_decay) : 0.0F,
      .rate = static_cast<float>(-lr),
      .adapts = adapts,
  };
}

void step(std::span<Weight<AdamNumbers>> weights, unsigned threads) noexcept {
  write_weights(weights, threads, chosen().steps->adam);
}

void step(std::span<Weight<SgdNumbers>> weights, unsigned threads) noexcept {
  write_weights(weights, threads, chosen().steps->sgd);
}

void step(std::span<Weight<AdagradNumbers>> weights, unsigned threads) noexcept {
  write_weights(weights, threads, chosen().steps->adagrad);
}

void step(std::span<Weight<LambNumbers>> weights, unsigned threads) {
  const StepKernels& kernels = *chosen().steps;
  const std::vector<Squares> squares = sums_over(weights, threads, kernels.lamb_averages);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double size = std::sqrt(squares[i].param);
    const double of_update = std::sqrt(squares[i].other);
    LambNumbers& numbers = weights[i].numbers;
    if (numbers.adapts && size > 0 && of_update > 0) numbers.rate *= static_cast<float>(size / of_update);
  }
  write_weights(weights, threads, kernels.lamb_weight);
}

void scale_gradients(const Lars& lars, std::span<Weight<SgdNumbers>*> weights, unsigned threads) {
  std::vector<Weight<SgdNumbers>> measured;
  measured.reserve(weights.size());
  for (const Weight<SgdNumbers>* weight : weights) measured.push_back(*weight);
  const auto body = [kernel = chosen().steps->squares](const SgdNumbers&, const StepArrays& arrays, std::size_t count) {
    return kernel(arrays, count);
  };
  const std::vector<Squares> squares = sums_over(std::span(measured), threads, body);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    SgdNumbers& numbers = weights[i]->numbers;
    const double size = std::sqrt(squares[i].param);
    const double of_grad = std::sqrt(squares[i].other);
    if (size > 0 && of_grad > 0) {
      const auto ratio = static_cast<float>(lars.factor * size / (of_grad + numbers.l2 * size + lars.eps));
      numbers.sign *= ratio;
      numbers.l2 *= ratio;
    }
  }
}

}  // namespace habana_mp::kernels

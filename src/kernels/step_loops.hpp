// Optimizer steps on one array, in the order of operations of torch's fused steps for the CPU, so that the bits are the
// same. In an anonymous namespace because each instruction set's file compiles its own copy. The compiler vectorizes
// the loops. It must not fuse a product and a sum, except for `__builtin_fmaf`.
#pragma once

#include <cstddef>

#include "kernels/step_table.hpp"

namespace habana_mp::kernels {
namespace {  // NOLINT(google-build-namespaces): see above

// Returns the gradient as the step uses it, with the sign of `maximize`. Unscales it if GradScaler left that to the
// optimizer.
template <bool scaled, typename Numbers>
inline float gradient_of(float* grad, std::size_t i, const Numbers& n) {
  if constexpr (scaled) grad[i] = grad[i] / n.scale;
  return grad[i] * n.sign;
}

template <bool scaled, bool l2, bool amsgrad>
void adam_loop(const AdamNumbers& numbers, const StepArrays& arrays, std::size_t count) {
  const AdamNumbers n = numbers;
  float* __restrict param = arrays.param;
  float* __restrict grad = arrays.grad;
  float* __restrict average = arrays.first;
  float* __restrict squares = arrays.second;
  float* __restrict largest = arrays.largest;
  const bool from_average = n.blend < 0.5F;
  const float blend = from_average ? n.blend : n.blend - 1.0F;
  for (std::size_t i = 0; i < count; ++i) {
    float g = gradient_of<scaled>(grad, i, n);
    float p = param[i];
    if constexpr (l2) {
      g = __builtin_fmaf(p, n.l2, g);
    } else {
      p = p * n.decay;
    }
    const float m = average[i];
    const float new_m = __builtin_fmaf(blend, g - m, from_average ? m : g);
    const float new_v = __builtin_fmaf(n.square * g, g, squares[i] * n.beta2);
    average[i] = new_m;
    squares[i] = new_v;
    float v = new_v;
    if constexpr (amsgrad) {
      const float before = largest[i];
      v = before > v || before != before ? before : v;
      largest[i] = v;
    }
    param[i] = p + n.rate * new_m / (__builtin_sqrtf(v) / n.root + n.eps);
  }
}

inline void adam(const AdamNumbers& numbers, const StepArrays& arrays, std::size_t count) noexcept {
  const bool l2 = numbers.l2 != 0.0F;
  const bool amsgrad = arrays.largest != nullptr;
  if (numbers.scaled) {
    if (l2) {
      amsgrad ? adam_loop<true, true, true>(numbers, arrays, count)
              : adam_loop<true, true, false>(numbers, arrays, count);
    } else {
      amsgrad ? adam_loop<true, false, true>(numbers, arrays, count)
              : adam_loop<true, false, false>(numbers, arrays, count);
    }
  } else if (l2) {
    amsgrad ? adam_loop<false, true, true>(numbers, arrays, count)
            : adam_loop<false, true, false>(numbers, arrays, count);
  } else {
    amsgrad ? adam_loop<false, false, true>(numbers, arrays, count)
            : adam_loop<false, false, false>(numbers, arrays, count);
  }
}

template <bool scaled, bool momentum>
void sgd_loop(const SgdNumbers& numbers, const StepArrays& arrays, std::size_t count) {
  const SgdNumbers n = numbers;
  float* __restrict param = arrays.param;
  float* __restrict grad = arrays.grad;
  float* __restrict average = arrays.first;
  for (std::size_t i = 0; i < count; ++i) {
    float g = gradient_of<scaled>(grad, i, n);
    const float p = param[i];
    g = n.decays ? __builtin_fmaf(p, n.l2, g) : g;
    if constexpr (momentum) {
      const float m = n.begins ? g : __builtin_fmaf(n.blend, g, average[i] * n.momentum);
      average[i] = m;
      g = n.nesterov ? __builtin_fmaf(m, n.momentum, g) : m;
    }
    param[i] = __builtin_fmaf(g, n.rate, p);
  }
}

inline void sgd(const SgdNumbers& numbers, const StepArrays& arrays, std::size_t count) noexcept {
  const bool momentum = arrays.first != nullptr;
  if (numbers.scaled) {
    momentum ? sgd_loop<true, true>(numbers, arrays, count) : sgd_loop<true, false>(numbers, arrays, count);
  } else {
    momentum ? sgd_loop<false, true>(numbers, arrays, count) : sgd_loop<false, false>(numbers, arrays, count);
  }
}

inline void adagrad(const AdagradNumbers& numbers, const StepArrays& arrays, std::size_t count) noexcept {
  const AdagradNumbers n = numbers;
  float* __restrict param = arrays.param;
  const float* __restrict grad = arrays.grad;
  float* __restrict squares = arrays.first;
  for (std::size_t i = 0; i < count; ++i) {
    const float p = param[i];
    float g = grad[i] * n.sign;
    g = n.decays ? __builtin_fmaf(p, n.l2, g) : g;
    const float sum = __builtin_fmaf(g, g, squares[i]);
    squares[i] = sum;
    param[i] = p + n.rate * g / (__builtin_sqrtf(sum) + n.eps);
  }
}

// Returns the update that LAMB adds to the weight, before the rate is applied.
inline float lamb_update(const LambNumbers& n, float p, float m, float v) {
  return __builtin_fmaf(p, n.decay, m * n.correction / (__builtin_sqrtf(v * n.square_correction) + n.eps));
}

// Sums that the compiler can vectorize, with the same bits for vectors of any length.
struct Lanes {
  static constexpr std::size_t count = 16;
  float sums[count] = {};

  void add(std::size_t lane, float value) { sums[lane] = __builtin_fmaf(value, value, sums[lane]); }
  [[nodiscard]] double total() const {
    double sum = 0;
    for (const float one : sums) sum += one;
    return sum;
  }
};

// Calls `body(element, lane)` for all elements.
template <class Body>
inline void over_lanes(std::size_t count, const Body& body) {
  std::size_t i = 0;
  for (; i + Lanes::count <= count; i += Lanes::count) {
    for (std::size_t lane = 0; lane < Lanes::count; ++lane) body(i + lane, lane);
  }
  for (std::size_t lane = 0; i + lane < count; ++lane) body(i + lane, lane);
}

inline Squares lamb_averages(const LambNumbers& numbers, const StepArrays& arrays, std::size_t count) noexcept {
  const LambNumbers n = numbers;
  const float* __restrict param = arrays.param;
  const float* __restrict grad = arrays.grad;
  float* __restrict average = arrays.first;
  float* __restrict squares = arrays.second;
  Lanes of_param;
  Lanes of_update;
  over_lanes(count, [&](std::size_t i, std::size_t lane) {
    const float p = param[i];
    const float g = __builtin_fmaf(p, n.l2, grad[i] * n.scale);
    const float m = __builtin_fmaf(n.blend, g, average[i] * n.beta1);
    const float v = __builtin_fmaf(n.square * g, g, squares[i] * n.beta2);
    average[i] = m;
    squares[i] = v;
    of_param.add(lane, p);
    of_update.add(lane, lamb_update(n, p, m, v));
  });
  return {of_param.total(), of_update.total()};
}

inline void lamb_weight(const LambNumbers& numbers, const StepArrays& arrays, std::size_t count) noexcept {
  const LambNumbers n = numbers;
  float* __restrict param = arrays.param;
  const float* __restrict average = arrays.first;
  const float* __restrict squares = arrays.second;
  for (std::size_t i = 0; i < count; ++i) {
    const float p = param[i];
    param[i] = __builtin_fmaf(lamb_update(n, p, average[i], squares[i]), n.rate, p);
  }
}

inline Squares squares(const StepArrays& arrays, std::size_t count) noexcept {
  const float* __restrict param = arrays.param;
  const float* __restrict grad = arrays.grad;
  Lanes of_param;
  Lanes of_grad;
  over_lanes(count, [&](std::size_t i, std::size_t lane) {
    of_param.add(lane, param[i]);
    of_grad.add(lane, grad[i]);
  });
  return {of_param.total(), of_grad.total()};
}

}  // namespace
}  // namespace habana_mp::kernels

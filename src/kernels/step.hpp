// Optimizer steps on many weights at once. Pure C++: no Python, no torch.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/step_table.hpp"
#include "kernels/types.hpp"

namespace habana_mp::kernels {

// One weight's part in a step. An array that is written must not overlap any other array of the step.
template <class Numbers>
struct Weight {
  Numbers numbers;
  StepArrays arrays;
  std::size_t count;
  void* lower;  // receives the new weight in `lower_type`, rounded to nearest even; may be null
  Float lower_type;
  std::size_t begin = 0;  // offset among all weights of a call, in elements; set by the step
};

// A step of torch.optim.Adam or AdamW, in double as in torch's fused step.
struct Adam {
  double lr;
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
  double grad_scale;  // divides the gradient if `scaled`
  bool scaled;
  bool decoupled;
  bool maximize;
  bool corrects;  // corrects the bias of averages that begin with zero

  // `step` counts from 1.
  [[nodiscard]] AdamNumbers numbers(double step) const noexcept;
};

// A step of torch.optim.SGD.
struct Sgd {
  double lr;
  double momentum;
  double dampening;
  double weight_decay;
  double grad_scale;
  bool scaled;
  bool nesterov;
  bool maximize;

  // `begins` is true if there was no momentum before.
  [[nodiscard]] SgdNumbers numbers(bool begins) const noexcept;
};

// A step of torch.optim.Adagrad.
struct Adagrad {
  double lr;
  double lr_decay;
  double weight_decay;
  double eps;
  bool maximize;

  // `step` counts from 1.
  [[nodiscard]] AdagradNumbers numbers(double step) const noexcept;
};

// A step of LAMB.
struct Lamb {
  double lr;
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
  double grad_scale;  // multiplies the gradient
  bool decoupled;
  bool corrects;
  bool averages_gradient;  // adds 1 - beta1 of the gradient to its average, else all of it
  bool adapts;             // scales the rate by the weight's norm divided by the update's norm

  // `step` counts from 1.
  [[nodiscard]] LambNumbers numbers(double step) const noexcept;
};

// The way LARS scales gradients, including their weight decay.
struct Lars {
  double factor;
  double eps;  // added to the gradient's norm
};

// Updates all weights in one pass over their arrays. The bits are the same on every instruction set and with any number
// of threads. They are those of torch's fused step, except for the last elements of an array whose length is not a
// multiple of a register, where torch sums in another order. Thread-safe, safe after fork, never throws. Writes to
// `Weight::begin`.
void step(std::span<Weight<AdamNumbers>> weights, unsigned threads) noexcept;
void step(std::span<Weight<SgdNumbers>> weights, unsigned threads) noexcept;
void step(std::span<Weight<AdagradNumbers>> weights, unsigned threads) noexcept;

// Updates all weights in two passes, because an update depends on the norms of the whole weight. Throws std::bad_alloc
// before any array is written.
void step(std::span<Weight<LambNumbers>> weights, unsigned threads);

// Makes the next step scale the gradients of these weights, after it adds the decay to them. Changes only the weights'
// `numbers`.
void scale_gradients(const Lars& lars, std::span<Weight<SgdNumbers>*> weights, unsigned threads);

}  // namespace habana_mp::kernels

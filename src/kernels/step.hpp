// The steps of optimizers on many weights at once: pure C++, no Python, no torch.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/step_table.hpp"
#include "kernels/types.hpp"

namespace habana_mp::kernels {

// One weight's part in a step. What is written may overlap nothing else that takes part.
template <class Numbers>
struct Weight {
  Numbers numbers;
  StepArrays arrays;
  std::size_t count;
  void* lower;  // gets the new weight in `lower_type`, rounded to nearest even; null for none
  Float lower_type;
  std::size_t begin = 0;  // among all weights of a call, in elements; for whoever shares them out
};

// A step of torch.optim.Adam or AdamW, in double as torch's fused step has it.
struct Adam {
  double lr;
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
  double grad_scale;  // the gradient is divided by it where `scaled`
  bool scaled;
  bool decoupled;
  bool maximize;
  bool corrects;  // the averages, for having begun with zero

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

  // `begins` where there was no momentum before.
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
  double grad_scale;  // the gradient is multiplied by it
  bool decoupled;
  bool corrects;
  bool averages_gradient;  // it goes into its average by 1 - beta1, else as a whole
  bool adapts;             // the rate is scaled by a weight's norm over its update's

  // `step` counts from 1.
  [[nodiscard]] LambNumbers numbers(double step) const noexcept;
};

// How LARS scales gradients, their weight decay included.
struct Lars {
  double factor;
  double eps;  // added to the gradient's norm
};

// Updates all weights in one pass over their arrays. The bits are the same on every instruction set and any number of
// threads: those of torch's fused step, but for the last elements of an array that is no multiple of a register, where
// torch orders a sum otherwise. Thread-safe, safe after fork, never throws; writes to the weights' own notes.
void step(std::span<Weight<AdamNumbers>> weights, unsigned threads) noexcept;
void step(std::span<Weight<SgdNumbers>> weights, unsigned threads) noexcept;
void step(std::span<Weight<AdagradNumbers>> weights, unsigned threads) noexcept;

// In two passes: a weight's update depends on the norms of the whole of it. Throws std::bad_alloc before any
// array is written.
void step(std::span<Weight<LambNumbers>> weights, unsigned threads);

// Has the next step scale the gradients of these weights, and add the decay to them before. What it writes are the
// weights' numbers alone.
void scale_gradients(const Lars& lars, std::span<Weight<SgdNumbers>*> weights, unsigned threads);

}  // namespace habana_mp::kernels

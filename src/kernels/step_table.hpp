// What one instruction set offers for the steps of optimizers. As table.hpp: no inline functions in here.
#pragma once

#include <cstddef>

namespace habana_mp::kernels {

// Equally long arrays of one weight, which do not overlap. What a step does not use is null.
struct StepArrays {
  float* param;
  float* grad;     // written only where it is scaled
  float* first;    // Adam's average of gradients, SGD's momentum
  float* second;   // Adam's average of squares
  float* largest;  // AMSGrad's
};

// What holds for all elements of one weight, rounded to what the arithmetic is done in.
struct AdamNumbers {
  float scale;  // the gradient is divided by it, unless it is 1
  float sign;   // -1 to maximize
  float l2;     // how much of the weight is added to the gradient
  float decay;  // what the weight is multiplied by
  float blend;  // how much of the gradient goes into its average
  float beta2;
  float square;  // how much of the gradient's square goes into its average
  float root;    // the bias correction of the average's root
  float eps;
  float rate;  // how much of the quotient is added to the weight: negative
  bool scaled;
};

struct SgdNumbers {
  float scale;
  float sign;
  float l2;
  float momentum;
  float blend;  // how much of the gradient goes into the momentum
  float rate;   // how much of the gradient is added to the weight: negative
  bool scaled;
  bool decays;
  bool nesterov;
  bool begins;  // the momentum becomes the gradient, whatever it was
};

struct StepKernels {
  void (*adam)(const AdamNumbers& numbers, const StepArrays& arrays, std::size_t count) noexcept;
  void (*sgd)(const SgdNumbers& numbers, const StepArrays& arrays, std::size_t count) noexcept;
};

extern const StepKernels scalar_steps;
extern const StepKernels avx2_steps;
extern const StepKernels avx512_steps;

}  // namespace habana_mp::kernels

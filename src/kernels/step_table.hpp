// What one instruction set offers for the steps of optimizers. As table.hpp: no inline functions in here.
#pragma once

#include <cstddef>

namespace habana_mp::kernels {

// Equally long arrays of one weight, which do not overlap. What a step does not use is null.
struct StepArrays {
  float* param;
  float* grad;     // written only where it is scaled
  float* first;    // Adam's average of gradients, SGD's momentum, Adagrad's sum of squares
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

struct AdagradNumbers {
  float sign;
  float l2;
  float eps;
  float rate;  // how much of the quotient is added to the weight: negative
  bool decays;
};

struct LambNumbers {
  float scale;  // what the gradient is multiplied by
  float l2;     // how much of the weight is added to the gradient
  float beta1;
  float blend;  // how much of the gradient goes into its average
  float beta2;
  float square;             // how much of the gradient's square goes into its average
  float correction;         // what the average is multiplied by
  float square_correction;  // what the average of squares is multiplied by
  float eps;
  float decay;  // how much of the weight is added to the update
  float rate;   // how much of the update is added to the weight: negative
  bool adapts;  // the rate is scaled by the weight's norm over the update's
};

// Sums of squares.
struct Squares {
  double param;
  double other;  // of the gradient, or of the update
};

struct StepKernels {
  void (*adam)(const AdamNumbers& numbers, const StepArrays& arrays, std::size_t count) noexcept;
  void (*sgd)(const SgdNumbers& numbers, const StepArrays& arrays, std::size_t count) noexcept;
  void (*adagrad)(const AdagradNumbers& numbers, const StepArrays& arrays, std::size_t count) noexcept;
  // LAMB's two passes: the averages, and the squares of the weight and of the update; then the weight.
  Squares (*lamb_averages)(const LambNumbers& numbers, const StepArrays& arrays, std::size_t count) noexcept;
  void (*lamb_weight)(const LambNumbers& numbers, const StepArrays& arrays, std::size_t count) noexcept;
  // Of the weight and of its gradient.
  Squares (*squares)(const StepArrays& arrays, std::size_t count) noexcept;
};

extern const StepKernels scalar_steps;
extern const StepKernels avx2_steps;
extern const StepKernels avx512_steps;

}  // namespace habana_mp::kernels

// The kernels of one instruction set for optimizer steps. No inline functions, for the reason given in table.hpp.
#pragma once

#include <cstddef>

namespace habana_mp::kernels {

// Arrays of one weight, of equal length, which do not overlap. Arrays that a step does not use are null.
struct StepArrays {
  float* param;
  float* grad;     // written only if it is scaled
  float* first;    // Adam's average of gradients, SGD's momentum, Adagrad's sum of squares
  float* second;   // Adam's average of squares
  float* largest;  // AMSGrad's largest average of squares
};

// The factors for all elements of one weight, rounded to float, the type of the arithmetic.
struct AdamNumbers {
  float scale;  // divides the gradient if `scaled`
  float sign;   // -1 to maximize
  float l2;     // multiplies the weight, which is then added to the gradient
  float decay;  // multiplies the weight itself
  float blend;  // the share of the gradient in its average
  float beta2;
  float square;  // the share of the gradient's square in its average
  float root;    // the square root of the bias correction of the average of squares
  float eps;
  float rate;  // multiplies the quotient that is added to the weight; negative
  bool scaled;
};

struct SgdNumbers {
  float scale;
  float sign;
  float l2;
  float momentum;
  float blend;  // the share of the gradient in the momentum
  float rate;   // multiplies the gradient that is added to the weight; negative
  bool scaled;
  bool decays;
  bool nesterov;
  bool begins;  // the momentum is set to the gradient, whatever it was
};

struct AdagradNumbers {
  float sign;
  float l2;
  float eps;
  float rate;  // multiplies the quotient that is added to the weight; negative
  bool decays;
};

struct LambNumbers {
  float scale;  // multiplies the gradient
  float l2;     // multiplies the weight, which is then added to the gradient
  float beta1;
  float blend;  // the share of the gradient in its average
  float beta2;
  float square;             // the share of the gradient's square in its average
  float correction;         // multiplies the average
  float square_correction;  // multiplies the average of squares
  float eps;
  float decay;  // multiplies the weight, which is then added to the update
  float rate;   // multiplies the update that is added to the weight; negative
  bool adapts;  // the rate is scaled by the weight's norm divided by the update's
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
  // LAMB's two passes. The first updates the averages and returns the squares of the weight and of the update. The
  // second updates the weight.
  Squares (*lamb_averages)(const LambNumbers& numbers, const StepArrays& arrays, std::size_t count) noexcept;
  void (*lamb_weight)(const LambNumbers& numbers, const StepArrays& arrays, std::size_t count) noexcept;
  // Sums the squares of the weight and of its gradient.
  Squares (*squares)(const StepArrays& arrays, std::size_t count) noexcept;
};

extern const StepKernels scalar_steps;
extern const StepKernels avx2_steps;
extern const StepKernels avx512_steps;

}  // namespace habana_mp::kernels

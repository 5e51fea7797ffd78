// Finds the weights of an optimizer's group that the kernels can step, and the addresses of their arrays.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "kernels/step.hpp"
#include "pybind.hpp"

namespace habana_mp::optim {

// A weight is taken if its gradient and states are float32 on the CPU, have the same layout as the weight without gaps,
// and share memory with nothing else in the step. All of this is checked before anything is written.
//
// Between the plan and its step other code may run and give a tensor other memory. So a step checks all tensors again.
// It leaves out weights that changed, and holds the memory of the others while the GIL is released.
class StepPlan {
 public:
  // `states` holds up to three lists: `first`, `second` and `largest` of kernels::StepArrays. `steps` is empty or holds
  // scalars that count the steps. `lowers` holds tensors that are written together with the weights, or None.
  StepPlan(const pybind11::list& params, const pybind11::list& grads, const pybind11::list& states,
           const pybind11::list& steps, const pybind11::list& lowers, bool writes_grads);

  // Indices in the lists: of the weights that are not taken, including those that changed before the step; of those
  // that changed; and of those whose lower tensor is written.
  [[nodiscard]] const std::vector<std::size_t>& left_out() const { return left_out_; }
  [[nodiscard]] const std::vector<std::size_t>& changed() const { return changed_; }
  [[nodiscard]] const std::vector<std::size_t>& lowered() const { return lowered_; }

  // Steps all weights that are taken, once: a second call steps nothing. A long step releases the GIL. Throws
  // std::bad_alloc before any array is written.
  void step(const kernels::Adam& adam);
  void step(const kernels::Adagrad& adagrad);
  void step(const kernels::Lamb& lamb);
  // `scaled` is empty, or has a flag for each weight: true if LARS scales its gradient.
  void step(const kernels::Sgd& sgd, const pybind11::list& begins, const kernels::Lars& lars,
            const pybind11::list& scaled);

 private:
  struct Taken {
    std::size_t place;
    kernels::StepArrays arrays;
    std::size_t count;
    float* step;
    bool has_lower;  // true also for an empty one, whose address is null
    void* lower;
    kernels::Float lower_type;

    bool operator==(const Taken& other) const;
  };

  class Looking;

  // Leaves out weights that changed. No Python code may run between this and the step.
  void look_again();
  // Runs `kernel`. If it is worth releasing the GIL for it, holds the memory of all taken weights meanwhile.
  template <class Kernel>
  void run(const Kernel& kernel);
  // Increments each weight's step count first.
  template <class Rule>
  void step_counted(const Rule& rule);

  std::vector<pybind11::tuple> kept_;  // params, grads, steps, lowers, states
  bool writes_grads_;
  std::vector<Taken> taken_;
  std::vector<std::size_t> left_out_;
  std::vector<std::size_t> changed_;
  std::vector<std::size_t> lowered_;
};

}  // namespace habana_mp::optim

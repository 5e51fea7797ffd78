// Which weights of an optimizer's group our kernels can step, and where their arrays lie.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "kernels/step.hpp"
#include "pybind.hpp"

namespace habana_mp::optim {

// A weight is taken where its gradient and states are float32 on the CPU, lie in memory as it does and without gaps,
// and share memory with nothing else that takes part. All of that is found out before anything is written.
//
// Between the plan and its step other code may run, and give a tensor other memory. So a step looks at all tensors
// again. It leaves a weight out where anything of it changed, and holds the memory of the others while the GIL is let
// go.
class StepPlan {
 public:
  // `states` holds up to three lists: what kernels::StepArrays calls first, second and largest. `steps` is empty or
  // holds scalars that count the steps. `lowers` holds tensors to be written beside the weights, or None.
  StepPlan(const pybind11::list& params, const pybind11::list& grads, const pybind11::list& states,
           const pybind11::list& steps, const pybind11::list& lowers, bool writes_grads);

  // The places in the lists of the weights that are not taken, those that changed before the step included; of those
  // that changed; and of those whose lower tensor is written.
  [[nodiscard]] const std::vector<std::size_t>& left_out() const { return left_out_; }
  [[nodiscard]] const std::vector<std::size_t>& changed() const { return changed_; }
  [[nodiscard]] const std::vector<std::size_t>& lowered() const { return lowered_; }

  // Each steps all weights that are taken, once: a second one steps nothing. A long step gives the GIL up meanwhile.
  // Throws std::bad_alloc before any array is written.
  void step(const kernels::Adam& adam);
  void step(const kernels::Adagrad& adagrad);
  void step(const kernels::Lamb& lamb);
  // `scaled` is empty, or says for each weight whether LARS scales its gradient.
  void step(const kernels::Sgd& sgd, const pybind11::list& begins, const kernels::Lars& lars,
            const pybind11::list& scaled);

 private:
  struct Taken {
    std::size_t place;
    kernels::StepArrays arrays;
    std::size_t count;
    float* step;
    bool has_lower;  // whose address is null where it is empty
    void* lower;
    kernels::Float lower_type;

    bool operator==(const Taken& other) const;
  };

  class Looking;

  // Leaves out what changed. After it no Python code may run before the step.
  void look_again();
  // Runs `kernel`, holding the memory of all that is taken.
  template <class Kernel>
  void run(const Kernel& kernel);
  // Counts each weight's step up before.
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

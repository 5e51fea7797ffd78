// Which weights of an optimizer's group our kernels can step, and where their arrays lie.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "kernels/step.hpp"

namespace habana_mp::optim {

// A weight is taken where its gradient and states are float32 on the CPU, lie in memory as it does and without gaps,
// and share memory with nothing else that takes part. All of that is found out before anything is written. A plan is
// for right away: it keeps the tensors alive, but not where their memory is.
class StepPlan {
 public:
  // `states` holds up to three lists: what kernels::StepArrays calls first, second and largest. `steps` is empty or
  // holds scalars that count the steps. `lowers` holds tensors to be written beside the weights, or None.
  StepPlan(const pybind11::list& params, const pybind11::list& grads, const pybind11::list& states,
           const pybind11::list& steps, const pybind11::list& lowers, bool writes_grads);

  // The places in the lists of the weights that are not taken, and of those whose lower tensor is.
  [[nodiscard]] const std::vector<std::size_t>& left_out() const { return left_out_; }
  [[nodiscard]] const std::vector<std::size_t>& lowered() const { return lowered_; }

  // Each steps all weights that are taken. The GIL is given up meanwhile.
  void step(const kernels::Adam& adam) const;
  void step(const kernels::Adagrad& adagrad) const;
  void step(const kernels::Lamb& lamb) const;
  // `scaled` is empty, or says for each weight whether LARS scales its gradient.
  void step(const kernels::Sgd& sgd, const pybind11::list& begins, const kernels::Lars& lars,
            const pybind11::list& scaled) const;

 private:
  struct Taken {
    std::size_t place;
    kernels::StepArrays arrays;
    std::size_t count;
    float* step;
    void* lower;
    kernels::Float lower_type;
  };

  // Counts each weight's step up before.
  template <class Rule>
  void step_counted(const Rule& rule) const;

  std::vector<pybind11::tuple> kept_;
  std::vector<Taken> taken_;
  std::vector<std::size_t> left_out_;
  std::vector<std::size_t> lowered_;
};

}  // namespace habana_mp::optim

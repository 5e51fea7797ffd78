#include <optional>

#include "instances.hpp"
#include "optim/plan.hpp"
#include "pybind.hpp"

namespace py = pybind11;

namespace habana_mp {

void register_optim(py::module_& module) {
  using optim::StepPlan;
  py::class_<StepPlan> plan_class(module, "StepPlan", "Which weights of an optimizer's group the core can step.");
  note_with_reserve(plan_class);
  plan_class
      .def(py::init<const py::list&, const py::list&, const py::list&, const py::list&, const py::list&, bool>(),
           py::kw_only(), py::arg("params"), py::arg("grads"), py::arg("states"), py::arg("steps"), py::arg("lowers"),
           py::arg("writes_grads"))
      .def_property_readonly("left_out", &StepPlan::left_out)
      .def_property_readonly("changed", &StepPlan::changed)
      .def_property_readonly("lowered", &StepPlan::lowered)
      .def(
          "adam",
          [](StepPlan& plan, double lr, double beta1, double beta2, double eps, double weight_decay, bool decoupled,
             bool maximize, bool corrects, std::optional<double> grad_scale) {
            plan.step(kernels::Adam{.lr = lr,
                                    .beta1 = beta1,
                                    .beta2 = beta2,
                                    .eps = eps,
                                    .weight_decay = weight_decay,
                                    .grad_scale = grad_scale.value_or(1.0),
                                    .scaled = grad_scale.has_value(),
                                    .decoupled = decoupled,
                                    .maximize = maximize,
                                    .corrects = corrects});
          },
          py::kw_only(), py::arg("lr"), py::arg("beta1"), py::arg("beta2"), py::arg("eps"), py::arg("weight_decay"),
          py::arg("decoupled"), py::arg("maximize"), py::arg("corrects"), py::arg("grad_scale"))
      .def(
          "adagrad",
          [](StepPlan& plan, double lr, double lr_decay, double weight_decay, double eps, bool maximize) {
            plan.step(kernels::Adagrad{
                .lr = lr, .lr_decay = lr_decay, .weight_decay = weight_decay, .eps = eps, .maximize = maximize});
          },
          py::kw_only(), py::arg("lr"), py::arg("lr_decay"), py::arg("weight_decay"), py::arg("eps"),
          py::arg("maximize"))
      .def(
          "lamb",
          [](StepPlan& plan, double lr, double beta1, double beta2, double eps, double weight_decay, double grad_scale,
             bool decoupled, bool corrects, bool averages_gradient, bool adapts) {
            plan.step(kernels::Lamb{.lr = lr,
                                    .beta1 = beta1,
                                    .beta2 = beta2,
                                    .eps = eps,
                                    .weight_decay = weight_decay,
                                    .grad_scale = grad_scale,
                                    .decoupled = decoupled,
                                    .corrects = corrects,
                                    .averages_gradient = averages_gradient,
                                    .adapts = adapts});
          },
          py::kw_only(), py::arg("lr"), py::arg("beta1"), py::arg("beta2"), py::arg("eps"), py::arg("weight_decay"),
          py::arg("grad_scale"), py::arg("decoupled"), py::arg("corrects"), py::arg("averages_gradient"),
          py::arg("adapts"))
      .def(
          "sgd",
          [](StepPlan& plan, double lr, double momentum, double dampening, double weight_decay, bool nesterov,
             bool maximize, std::optional<double> grad_scale, const py::list& begins, double lars_factor,
             double lars_eps, const py::list& lars) {
            plan.step(kernels::Sgd{.lr = lr,
                                   .momentum = momentum,
                                   .dampening = dampening,
                                   .weight_decay = weight_decay,
                                   .grad_scale = grad_scale.value_or(1.0),
                                   .scaled = grad_scale.has_value(),
                                   .nesterov = nesterov,
                                   .maximize = maximize},
                      begins, {.factor = lars_factor, .eps = lars_eps}, lars);
          },
          py::kw_only(), py::arg("lr"), py::arg("momentum"), py::arg("dampening"), py::arg("weight_decay"),
          py::arg("nesterov"), py::arg("maximize"), py::arg("grad_scale"), py::arg("begins"),
          py::arg("lars_factor") = 0.0, py::arg("lars_eps") = 0.0, py::arg("lars") = py::list());
}

}  // namespace habana_mp

// The facts of a call that the rules use (rules/decide.hpp, rules/retry.hpp). Each is looked up in torch or Python only
// when a rule needs it.
#pragma once

#include <optional>

#include "engine/cast_arguments.hpp"
#include "engine/region.hpp"

namespace habana_mp::engine {

// Calls a condition with the arguments. Exceptions count as no, except when memory runs out: torch itself raises the
// error for invalid arguments.
rules::Answer ask(PyObject* condition, const Arguments& arguments);

struct Facts : Call {
  using Answer = rules::Answer;

  // The surroundings of the call.
  [[nodiscard]] bool is_python_function() const { return target.is_python(); }
  [[nodiscard]] bool is_decided_elsewhere() const;
  [[nodiscard]] std::optional<Reason> place() const;
  [[nodiscard]] bool caller_is_exact() const { return engine::caller_is_exact(); }
  [[nodiscard]] bool is_of_float32_alone_within_modules() const;
  [[nodiscard]] bool is_for_another_device() const;

  // The inputs and the operation.
  [[nodiscard]] bool holds_sparse_tensor() const { return engine::holds_sparse_tensor(arguments, reading); }
  [[nodiscard]] bool first_input_is_a_number() const;
  [[nodiscard]] Answer makes_product() const { return answer_of(rule.conditions.makes_product, Answer::yes); }
  [[nodiscard]] Answer is_fused() const { return answer_of(rule.conditions.is_fused); }
  [[nodiscard]] Answer wrong_in_bf16() const {
    if (rule.conditions.wrong_in_bf16 == nullptr || (rule.wrong_if_strided && is_common_convolution()))
      return Answer::no;
    return answer_of(rule.conditions.wrong_in_bf16);
  }
  [[nodiscard]] bool may_add_up() const { return rule.conditions.adds_up != nullptr; }
  [[nodiscard]] Answer adds_up() const { return answer_of(rule.conditions.adds_up); }

  // Costs, and limits of torch.
  // True if torch's autocast can lower the products inside this call and leave all else as it is without lists. That
  // requires that all tensors are on the CPU, in float32 or in `to`, and that torch records no operations.
  [[nodiscard]] bool may_lower_products(Kind to) const;
  [[nodiscard]] bool mixes_in_a_transform() const;

  // After a failure: the exception that is set, and the next attempt.
  [[nodiscard]] bool torch_raised() const;
  [[nodiscard]] bool cast_refused() const;
  [[nodiscard]] bool is_left_alone() const;
  // True if an attempt in the precision of the updated state would differ from the call as it is written.
  [[nodiscard]] bool updates_lower_state() const { return rules::must_cast(lower_state(), reading); }
  // The lower precision of the state that the call updates besides its first input: statistics of a model whose tensors
  // are all in a lower precision. Kind::other if the call updates no such state.
  [[nodiscard]] Kind lower_state() const;

 private:
  // Returns `otherwise` if the operation has no such condition.
  [[nodiscard]] Answer answer_of(PyObject* condition, Answer otherwise = Answer::no) const {
    return condition == nullptr ? otherwise : ask(condition, arguments);
  }
  [[nodiscard]] bool is_common_convolution() const;
};

bool holds_lower_tensor(const Arguments& arguments);

}  // namespace habana_mp::engine

// What rules ask of a call (rules/decide.hpp, retry.hpp, speak.hpp), found out of torch and Python when it is asked.
#pragma once

#include <optional>

#include "engine/cast_arguments.hpp"
#include "engine/region.hpp"

namespace habana_mp::engine {

struct Facts : Call {
  // Where it is made.
  [[nodiscard]] bool is_python_function() const { return target.is_python(); }
  [[nodiscard]] bool is_decided_elsewhere() const;
  [[nodiscard]] std::optional<Reason> place() const;
  [[nodiscard]] bool caller_is_exact() const;
  [[nodiscard]] bool computes_state() const;
  [[nodiscard]] bool is_all_float32_in_any_module() const;
  [[nodiscard]] bool is_all_float32_in_module_call() const;
  [[nodiscard]] bool adds_three_terms() const;
  [[nodiscard]] bool is_for_another_device() const;

  // What it computes.
  [[nodiscard]] std::optional<rules::Present> inputs_with_dimensions() const;
  [[nodiscard]] bool holds_one_tensor() const;
  [[nodiscard]] bool holds_sparse_tensor() const;
  [[nodiscard]] bool has_number_beyond(Kind precision) const;
  [[nodiscard]] rules::Answer makes_product() const;
  [[nodiscard]] rules::Answer is_fused() const;
  [[nodiscard]] rules::Answer wrong_in_bf16() const;
  [[nodiscard]] rules::Answer adds_up() const;

  // What it costs, and what torch can do.
  [[nodiscard]] bool may_lower_products(Kind to) const;
  [[nodiscard]] rules::Answer is_slower_lowered(Kind to) const;
  [[nodiscard]] bool mixes_in_a_transform() const;

  // Of the exception that is set.
  [[nodiscard]] bool torch_raised() const;
  [[nodiscard]] bool cast_refused() const;
  [[nodiscard]] bool is_left_alone() const;
  // Would a try in the precision of what the call updates be another than the one as it is written?
  [[nodiscard]] bool updates_lower_state() const;
};

// The lower precision of what a call updates beside its first input: statistics of a model that is lower as a whole.
// Kind::other where there is none.
Kind lower_state_of(const Call& call);

// Parts of the above, for who has no reading.
bool is_decided_elsewhere(const Arguments& arguments);
bool is_for_another_device(const RuleSet* region, const Arguments& arguments);
bool is_left_alone(const Arguments& arguments);
bool holds_lower_tensor(const Arguments& arguments);
// The kind of the first floating tensor, or Kind::other.
Kind first_floating_kind(const Arguments& arguments);
// True if one was lowered by an earlier call that autograd did not track.
bool holds_lowered_tensor(const Arguments& arguments);
// True if one is a lower value that a module keeps.
bool holds_kept_value(const Arguments& arguments);
// True if autograd does not track the call, and all floating tensors are of modules, but for numbers: tensors without
// dimensions.
bool computes_state(const Arguments& arguments);
bool has_sparse_gradient(const Rule& rule, const Arguments& arguments);
rules::Answer ask(PyObject* question, const Arguments& arguments);
bool cast_refused();

}  // namespace habana_mp::engine

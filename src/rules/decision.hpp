// The decision about one call and its reason, as the log, the counters and the report show them.
#pragma once

#include <cstdint>

namespace habana_mp::rules {

enum class Precision : std::uint8_t { bf16, fp16, fp32, unchanged };
inline constexpr int precision_count = 4;

// Returns the word of the log and the report: "bf16", "fp16", "fp32", "unchanged".
const char* name(Precision precision) noexcept;

enum class Reason : std::uint8_t {
  list,            // the operation is in a list
  widest,          // rule 2: the widest precision among the inputs
  in_place,        // rule 3: the target of an in-place operation keeps its precision
  first_input,     // rule 4: the precision of the first input
  no_kernel,       // rule 8: no kernel for the lower precision
  scalar,          // rule 9: a scalar was clamped to the lower precision's range
  ineligible,      // rule 6: float64, complex or no floating tensor among the inputs
  explicit_out,    // rule 6: out= was passed
  explicit_dtype,  // rule 6: dtype= was passed
  view,            // rule 6: the result may be a view of the input
  no_product,      // the list applies to matrix products only, and this call makes none
  construction,    // rule 11: a module is being constructed
  optimizer_step,  // rule 11: inside an optimizer's step
  worker,          // rule 11: in a DataLoader worker
  distributed,     // rule 11: torch.distributed handles parameters and gradients
  library,         // rule 11: in exact code, that of a library or given to convert
  state,           // rule 11: only tensors of modules take part, and autograd does not track the call
  slower,          // measured: the lower precision takes longer for this shape (skip_slower=True)
  other_device,    // no tensor is on the device of the region
  op_wrap,         // hmp.op_wrap set the function's precision
  parts,           // a list names the operations that it consists of, or one that it is a part of
  sums,            // rule 8: the call or its gradient adds up lowered values
  disabled,        // under disable_casts; only while calls are watched
  autocast_off,    // rule 10: in a region of torch.autocast(enabled=False)
  unlisted,        // neither a list nor a rule names the operation; only while calls are watched
  points,          // in the forward of a module: a product of three terms without a weight, which rotates points
  all_float32,     // within modules: arithmetic without a weight and without a lower tensor
};
inline constexpr int reason_count = 27;

// Returns the word for programs: "list", "widest", ...
const char* word(Reason reason) noexcept;

// Returns a few words for the user: "in the list", "widest input", ...
const char* describe(Reason reason) noexcept;

struct Decision {
  Precision precision;
  Reason reason;
  bool operator==(const Decision&) const = default;
};

}  // namespace habana_mp::rules

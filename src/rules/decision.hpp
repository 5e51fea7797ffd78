// What was decided for one call of a covered operation, and why. The log, the counters and the report speak in these.
#pragma once

#include <cstdint>

namespace habana_mp::rules {

enum class Precision : std::uint8_t { bf16, fp16, fp32, unchanged };
inline constexpr int precision_count = 4;

// The words of the log and the report: "bf16", "fp16", "fp32", "unchanged".
const char* name(Precision precision) noexcept;

enum class Reason : std::uint8_t {
  list,            // the operation is in a list
  widest,          // rule 2: the widest precision among the inputs
  in_place,        // rule 3: the target of an in-place operation keeps its precision
  first_input,     // rule 4: the precision of the first input
  no_kernel,       // rule 8: no kernel for the lower precision
  scalar,          // rule 9: a scalar was brought into the lower precision's range
  ineligible,      // rule 6: float64, complex or no floating tensor among the inputs
  explicit_out,    // rule 6: out= was given
  explicit_dtype,  // rule 6: dtype= was given
  view,            // rule 6: the result may be a view of the input
  no_product,      // the list means matrix products, and this call makes none
  construction,    // rule 11: a module is being constructed
  optimizer_step,  // rule 11: inside an optimizer's step
  worker,          // rule 11: a DataLoader worker
  distributed,     // rule 11: torch.distributed handles parameters and gradients
  library,         // rule 11: the code of a library that computes in float32
  state,           // rule 11: only tensors of modules take part, and autograd does not track it
  slower,          // the lower precision takes longer for this shape, and the user wants to know of such
  other_device,    // no tensor of the device that the region is for
  op_wrap,         // hmp.op_wrap gave the function its precision
  parts,           // a list names what the operation is computed of, or is a part of
  sums,            // rule 8: it adds up what was lowered, or its gradient does
  disabled,        // under disable_casts, and somebody watches
  autocast_off,    // rule 10: in a region of torch.autocast(enabled=False)
  unlisted,        // neither a list nor a rule names the operation, and somebody watches
  points,          // in the forward of a module: a product of three terms without a weight, which turns points
  all_float32,     // within modules: arithmetic that neither a weight nor a lower tensor takes part in
};
inline constexpr int reason_count = 27;

// For a program: "list", "widest", ...
const char* word(Reason reason) noexcept;

// A few words for a person: "in the list", "widest input", ...
const char* describe(Reason reason) noexcept;

struct Decision {
  Precision precision;
  Reason reason;
  bool operator==(const Decision&) const = default;
};

}  // namespace habana_mp::rules

// The decision about one call and its reason, as the log, the counters and the report show them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace habana_mp::rules {

// Casts have the first three. From `another` on: of calls that were given another dtype.
enum class Precision : std::uint8_t { bf16, fp16, fp32, unchanged, another };

// The words of the log and the report. Those of other dtypes are torch's names.
inline constexpr std::array precisions{"bf16",    "fp16",  "fp32",      "unchanged", "another dtype",
                                       "float64", "int64", "int32",     "int16",     "int8",
                                       "uint8",   "bool",  "complex64", "complex128"};

constexpr const char* name(Precision precision) noexcept { return precisions[static_cast<std::size_t>(precision)]; }

enum ReasonFlag : unsigned {
  none = 0,
  casts_off = 1,      // it applies to every call in its place, so it says nothing about one operation
  in_log = 2,         // the log adds it to its line about a cast
  over_unlisted = 4,  // it explains a call better than the rule for unlisted operations
};

// Each reason is one row:
// - its name, which is its word in JSON lines and reports;
// - the rule of docs/rules.md, the option or the function that decides (for rule 1 the report names the list's line);
// - its flags;
// - the kind of finding that reports each call with this reason, if there is one;
// - its meaning in a few words, for the log and the report;
// - when it applies, for docs/log.md.
#define HABANA_MP_REASONS(REASON)                                                                                      \
  REASON(list, "rule 1", none, "", "in the list", "the operation is in one of the two lists")                          \
  REASON(float32_result, "rule 1", none, "", "in the list, with a float32 result",                                     \
         "the line ends in `-> fp32`: the operands are lowered, the result is the float32 sum of their products")      \
  REASON(widest, "rule 2", none, "", "widest input",                                                                   \
         "its inputs must agree, and the widest precision among them was taken")                                       \
  REASON(in_place, "rule 3", none, "", "in-place target keeps its precision",                                          \
         "an in-place operation; the other inputs follow its target; those of a norm follow the statistics that it "   \
         "updates if torch accepts nothing else")                                                                      \
  REASON(first_input, "rule 4", none, "", "first input", "the operation is in no list; its first input decides")       \
  REASON(operands, "preset", none, "", "as its operands are",                                                          \
         "with `preset=\"half\"`: a product of tensors that are in a lower precision; others are left alone")          \
  REASON(slow, "preset", none, "", "computed in float32, then rounded",                                                \
         "with `preset=\"half\"`: torch is slow with it in that precision on a CPU (lists/presets/half.json)")         \
  REASON(no_kernel, "rule 8", in_log, "", "no kernel for the lower precision",                                         \
         "the device has none, or only an unreliable one")                                                             \
  REASON(scalar, "rule 9", in_log, "scalar", "scalar brought into the lower precision's range",                        \
         "a Python number was too large for it and was saturated")                                                     \
  REASON(ineligible, "rule 6", none, "", "an input is float64 or complex, or none is floating",                        \
         "float64, complex, or no floating tensor among the inputs")                                                   \
  REASON(explicit_out, "rule 6", none, "as given", "out= was given", "the call chooses the tensor for its result")     \
  REASON(explicit_dtype, "rule 6", none, "as given", "dtype= was given", "the call chooses its precision")             \
  REASON(view, "rule 6", none, "", "the result may be a view of the input",                                            \
         "`einsum` of one tensor, which makes no product, and `chain_matmul` and `cartesian_prod` of one tensor")      \
  REASON(no_product, "rule 1", none, "", "it makes no matrix product",                                                 \
         "the preset lowers only those calls of `einsum`, `tensordot` and `inner` that make one; the call ran in the " \
         "widest precision among its inputs")                                                                          \
  REASON(construction, "rule 11", casts_off, "", "a module is being constructed", "inside a module's `__init__`")      \
  REASON(optimizer_step, "rule 11", casts_off, "", "inside an optimizer's step",                                       \
         "inside `step()` of a `torch.optim` optimizer")                                                               \
  REASON(worker, "rule 11", casts_off, "elsewhere", "in a DataLoader worker", "in a worker process of a DataLoader")   \
  REASON(distributed, "rule 11", casts_off, "elsewhere", "in the code of torch.distributed",                           \
         "FSDP or a communication hook handles parameters and gradients")                                              \
  REASON(library, "rule 11", casts_off | over_unlisted, "elsewhere",                                                   \
         "in exact code: that of a library, or given to convert(exact=)",                                              \
         "Gaussian processes, metrics, and what `exact` names")                                                        \
  REASON(arithmetic, "rule 11", over_unlisted, "", "arithmetic on float32 alone",                                      \
         "with `within`: no input is in lower precision, and no Parameter meets an activation")                        \
  REASON(outside, "within", none, "", "outside of modules",                                                            \
         "with `within`: a product that the list would lower in a module; its first input decides")                    \
  REASON(other_device, "autocast", none, "elsewhere", "the region is for another device",                              \
         "none of its tensors is on the device of the `hmp.autocast` around it")                                       \
  REASON(op_wrap, "op_wrap", none, "", "wrapped by op_wrap",                                                           \
         "a user-defined function to which `hmp.op_wrap` gave a precision")                                            \
  REASON(parts, "rule 5", none, "", "a list names its parts, or what it is a part of",                                 \
         "no list names the operation itself, but a list names its parts (`log_softmax` for `cross_entropy`) or the "  \
         "loss of which it is a part")                                                                                 \
  REASON(sums, "rule 8", none, "", "summed in float32, then rounded",                                                  \
         "`index_add` and similar operations, or the gradient of a lookup")                                            \
  REASON(disabled, "disable_casts", casts_off, "", "under disable_casts",                                              \
         "only in the report, and only if calls are watched: in a block of `hmp.disable_casts`")                       \
  REASON(inside, "rule 11", casts_off, "", "inside a function that computes in float32",                               \
         "the same in a function of torch or of a library that runs without casts, which the report names")            \
  REASON(autocast_off, "rule 10", casts_off, "protected", "inside of torch.autocast(enabled=False)",                   \
         "only in the report")                                                                                         \
  REASON(level, "opt_level", none, "", "under opt_level O0",                                                           \
         "with `O0`, of convert or of the environment: the call is one that the lists or a rule would decide")         \
  REASON(unlisted, "rule 4", none, "", "in no list: runs in its input's precision",                                    \
         "only in the report, and only if calls are watched: neither a list nor a rule names the operation, and its "  \
         "input is in lower precision")                                                                                \
  REASON(given_dtype, "rule 6", none, "", "dtype= was given, and no list decides",                                     \
         "only in the report, and only if calls are watched: the same where the call chooses its precision")           \
  REASON(suspended, "rule 4", none, "", "lists are suspended here: runs in its input's precision",                     \
         "the same where a list names the operation, but the lists are suspended: inside of a function that a list "   \
         "or `hmp.op_wrap` handles, in a hook of a gradient, or in a backward written in Python")

struct ReasonRow {
  const char* word;
  const char* rule;
  unsigned flags;
  const char* finding;
  const char* description;
  const char* when;
};

enum class Reason : std::uint8_t {
#define HABANA_MP_ENUMERATOR(name, ...) name,
  HABANA_MP_REASONS(HABANA_MP_ENUMERATOR)
#undef HABANA_MP_ENUMERATOR
};

inline constexpr std::array reasons{
#define HABANA_MP_ROW(name, ...) ReasonRow{#name, __VA_ARGS__},
    HABANA_MP_REASONS(HABANA_MP_ROW)
#undef HABANA_MP_ROW
};

constexpr const ReasonRow& row_of(Reason reason) noexcept { return reasons[static_cast<std::size_t>(reason)]; }

constexpr const char* describe(Reason reason) noexcept { return row_of(reason).description; }

constexpr bool has(Reason reason, unsigned flag) noexcept { return (row_of(reason).flags & flag) != 0; }

// True if a line of a list decides.
constexpr bool is_by_list(Reason reason) noexcept { return reason == Reason::list || reason == Reason::float32_result; }

// True if decisions for this reason have a line.
constexpr bool has_line(Reason reason) noexcept { return is_by_list(reason) || reason == Reason::no_product; }

struct Decision {
  Precision precision;
  Reason reason;
  std::uint32_t line = 0;  // the number of the line of a list that decides, from 1; 0: none
  bool operator==(const Decision&) const = default;
};

}  // namespace habana_mp::rules

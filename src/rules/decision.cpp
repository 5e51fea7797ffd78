#include "rules/decision.hpp"

#include <array>
#include <cstddef>

namespace habana_mp::rules {

namespace {

constexpr std::array names{"bf16", "fp16", "fp32", "unchanged"};
static_assert(names.size() == precision_count);

struct Words {
  const char* word;  // the enumerator's name; programs that read the JSON lines compare it
  const char* description;
};
constexpr std::array words{
    Words{"list", "in the list"},
    Words{"widest", "widest input"},
    Words{"in_place", "in-place target keeps its precision"},
    Words{"first_input", "first input"},
    Words{"no_kernel", "no kernel for the lower precision"},
    Words{"scalar", "scalar brought into the lower precision's range"},
    Words{"ineligible", "inputs are never cast"},
    Words{"explicit_out", "out= was given"},
    Words{"explicit_dtype", "dtype= was given"},
    Words{"view", "the result may be a view of the input"},
    Words{"no_product", "it makes no matrix product"},
    Words{"construction", "a module is being constructed"},
    Words{"optimizer_step", "inside an optimizer's step"},
    Words{"worker", "in a DataLoader worker"},
    Words{"distributed", "in the code of torch.distributed"},
    Words{"library", "in exact code: that of a library, or given to convert(exact=)"},
    Words{"state", "arithmetic on a module's own tensors"},
    Words{"slower", "slower in the lower precision"},
    Words{"other_device", "the region is for another device"},
    Words{"op_wrap", "wrapped by op_wrap"},
    Words{"parts", "a list names its parts, or what it is a part of"},
    Words{"sums", "summed in float32, then rounded"},
    Words{"disabled", "under disable_casts"},
    Words{"autocast_off", "inside of torch.autocast(enabled=False)"},
    Words{"unlisted", "in no list: runs in its input's precision"},
    Words{"points", "a product of three terms, without a weight"},
    Words{"all_float32", "arithmetic in float32, without a weight"},
};
static_assert(words.size() == reason_count);

}  // namespace

const char* name(Precision precision) noexcept { return names[static_cast<std::size_t>(precision)]; }

const char* word(Reason reason) noexcept { return words[static_cast<std::size_t>(reason)].word; }

const char* describe(Reason reason) noexcept { return words[static_cast<std::size_t>(reason)].description; }

}  // namespace habana_mp::rules

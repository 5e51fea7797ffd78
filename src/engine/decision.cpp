#include "engine/decision.hpp"

#include <array>
#include <cstddef>

namespace habana_mp::engine {

namespace {

constexpr std::array names{"bf16", "fp16", "fp32", "unchanged"};
static_assert(names.size() == precision_count);

constexpr std::array descriptions{
    "in the list",
    "widest input",
    "in-place target keeps its precision",
    "first input",
    "no kernel for the lower precision",
    "scalar brought into the lower precision's range",
    "inputs are never cast",
    "out= was given",
    "dtype= was given",
    "the result may be a view of the input",
    "it makes no matrix product",
    "a module is being constructed",
    "inside an optimizer's step",
    "in a DataLoader worker",
    "in the code of torch.distributed",
    "slower in the lower precision",
    "the region is for another device",
    "wrapped by op_wrap",
};
static_assert(descriptions.size() == reason_count);

}  // namespace

const char* name(Precision precision) noexcept { return names[static_cast<std::size_t>(precision)]; }

const char* describe(Reason reason) noexcept { return descriptions[static_cast<std::size_t>(reason)]; }

}  // namespace habana_mp::engine

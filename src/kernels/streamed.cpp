#include "kernels/streamed.hpp"

namespace habana_mp::kernels {

// Measured. A page, where the processor's own looking ahead ends, is right for Zen 5: a tenth faster than not asking,
// and half as fast again where a register's load spans two lines of the cache. Zen 4 loses a tenth by that, where
// memory lies in small pages, and gains up to a tenth by a lead of four lines. As the module is loaded, not on first
// use: see threads.cpp.
const std::size_t source_lead = [] {
  constexpr std::size_t page = 4096;
  constexpr std::size_t few_lines = 256;
  __builtin_cpu_init();
  return __builtin_cpu_is("amdfam19h") != 0 ? few_lines : page;  // Zen 3 and 4
}();

}  // namespace habana_mp::kernels

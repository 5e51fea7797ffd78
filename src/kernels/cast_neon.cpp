#include "kernels/neon.hpp"

namespace habana_mp::kernels {
namespace {

struct Integers {
  static uint16x4_t bf16_of(uint32x4_t x) { return bf16_by_integers(x); }
};

}  // namespace

const Table neon_table = {
    "neon",
    {{nullptr, run<F32ToBf16, Integers>, run<F32ToF16, Integers>},
     {run<Bf16ToF32, Integers>, nullptr, run<Bf16ToF16, Integers>},
     {run<F16ToF32, Integers>, run<F16ToBf16, Integers>, nullptr}},
    &neon_fused,
    nullptr,
    false,
};

}  // namespace habana_mp::kernels

#include "kernels/neon.hpp"

namespace habana_mp::kernels {
namespace {

// With the default FPCR, BFCVTN preserves denormals.
struct Instruction {
  static uint16x4_t bf16_of(uint32x4_t x) { return vreinterpret_u16_bf16(vcvt_bf16_f32(vreinterpretq_f32_u32(x))); }
};

}  // namespace

const Table neon_bf16_table = {
    "neon_bf16",
    {{nullptr, run<F32ToBf16, Instruction>, run<F32ToF16, Instruction>},
     {run<Bf16ToF32, Instruction>, nullptr, run<Bf16ToF16, Instruction>},
     {run<F16ToF32, Instruction>, run<F16ToBf16, Instruction>, nullptr}},
    &neon_fused,
    nullptr,
    true,
};

}  // namespace habana_mp::kernels

#include "kernels/avx512.hpp"

namespace habana_mp::kernels {
namespace {

struct Integers {
  static __m512i any(__m512i a, __m512i b) { return bf16_by_integers(a, b); }
  static __m512i normal(__m512i a, __m512i b) { return bf16_by_integers(a, b); }
};

}  // namespace

const Table avx512_table = {
    "avx512",
    {{nullptr, run<F32ToBf16, Integers>, run<F32ToF16, Integers>},
     {run<Bf16ToF32, Integers>, nullptr, run<Bf16ToF16, Integers>},
     {run<F16ToF32, Integers>, run<F16ToBf16, Integers>, nullptr}},
    &avx512_fused,
    nullptr,
    false,
};

}  // namespace habana_mp::kernels

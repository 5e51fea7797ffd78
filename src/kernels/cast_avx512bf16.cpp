#include "kernels/avx512.hpp"

namespace habana_mp::kernels {
namespace {

// VCVTNE2PS2BF16 reads denormals as zero, whatever MXCSR says. The doubled bits of a value, minus one, are below
// 0x00ffffff for denormals only: zero wraps around to the maximum.
inline bool has_denormals(__m512i a, __m512i b) {
  const __m512i one = _mm512_set1_epi32(1);
  const __m512i least =
      _mm512_min_epu32(_mm512_sub_epi32(_mm512_add_epi32(a, a), one), _mm512_sub_epi32(_mm512_add_epi32(b, b), one));
  return _mm512_cmplt_epu32_mask(least, _mm512_set1_epi32(0x00ffffff)) != 0;
}

struct Instruction {
  static __m512i normal(__m512i a, __m512i b) {
    return (__m512i)_mm512_cvtne2ps_pbh(_mm512_castsi512_ps(b), _mm512_castsi512_ps(a));
  }
  static __m512i any(__m512i a, __m512i b) {
    return __builtin_expect(static_cast<long>(has_denormals(a, b)), 0L) != 0 ? bf16_by_integers(a, b) : normal(a, b);
  }
};

constexpr Table table_with(const char* name, const ProductKernels* products) {
  return {
      name,
      {{nullptr, run<F32ToBf16, Instruction>, run<F32ToF16, Instruction>},
       {run<Bf16ToF32, Instruction>, nullptr, run<Bf16ToF16, Instruction>},
       {run<F16ToF32, Instruction>, run<F16ToBf16, Instruction>, nullptr}},
      &avx512_fused,
      products,
      true,
  };
}

}  // namespace

constinit const Table avx512_bf16_table = table_with("avx512_bf16", &avx512_bf16_products);
#if defined(HABANA_MP_AMX)
constinit const Table amx_table = table_with("amx", &amx_products);
#endif

}  // namespace habana_mp::kernels

// AVX2 and F16C. bfloat16 is converted in integer arithmetic. VCVTPS2PH has its rounding mode as an operand and ignores
// FTZ; VCVTPH2PS ignores DAZ. DAZ does affect float32 denormals, but these become zero in float16 anyway.
#include <immintrin.h>

#include "kernels/bits.hpp"
#include "kernels/table.hpp"

namespace habana_mp::kernels {
namespace {

constexpr std::size_t step = 16;
constexpr std::size_t register_size = 32;

__m256i load(const unsigned char* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
__m128i load_half(const unsigned char* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }

void store(unsigned char* to, __m256i value) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value); }

__m256i round_to_bf16(__m256i x) {
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(x, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(x, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i magnitude = _mm256_and_si256(x, _mm256_set1_epi32(0x7fffffff));
  const __m256i nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
  return _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), nan);
}

// Packing interleaves the 128-bit lanes. This moves [a0 b0 a1 b1] back to [a0 a1 b0 b1].
__m256i pack(__m256i a, __m256i b) { return _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8); }

__m256i f32_bits_of_bf16(__m128i x) { return _mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16); }

__m256i join(__m128i low, __m128i high) { return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1); }

__m128i f16_of(__m256i f32_bits) {
  return _mm256_cvtps_ph(_mm256_castsi256_ps(f32_bits), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

__m256i f32_bits_of_f16(__m128i x) { return _mm256_castps_si256(_mm256_cvtph_ps(x)); }

template <class Cast>
struct Step;

template <>
struct Step<F32ToBf16> {
  static void run(const unsigned char* in, unsigned char* out) {
    store(out, pack(round_to_bf16(load(in)), round_to_bf16(load(in + 32))));
  }
};

template <>
struct Step<F32ToF16> {
  static void run(const unsigned char* in, unsigned char* out) {
    store(out, join(f16_of(load(in)), f16_of(load(in + 32))));
  }
};

template <>
struct Step<Bf16ToF32> {
  static void run(const unsigned char* in, unsigned char* out) {
    store(out, f32_bits_of_bf16(load_half(in)));
    store(out + 32, f32_bits_of_bf16(load_half(in + 16)));
  }
};

template <>
struct Step<Bf16ToF16> {
  static void run(const unsigned char* in, unsigned char* out) {
    store(out, join(f16_of(f32_bits_of_bf16(load_half(in))), f16_of(f32_bits_of_bf16(load_half(in + 16)))));
  }
};

template <>
struct Step<F16ToF32> {
  static void run(const unsigned char* in, unsigned char* out) {
    store(out, f32_bits_of_f16(load_half(in)));
    store(out + 32, f32_bits_of_f16(load_half(in + 16)));
  }
};

template <>
struct Step<F16ToBf16> {
  static void run(const unsigned char* in, unsigned char* out) {
    store(out, pack(round_to_bf16(f32_bits_of_f16(load_half(in))), round_to_bf16(f32_bits_of_f16(load_half(in + 16)))));
  }
};

template <class Cast>
void run(const void* source, void* target, std::size_t count) noexcept {
  const auto* in = static_cast<const unsigned char*>(source);
  auto* out = static_cast<unsigned char*>(target);
  std::size_t done = 0;
  if (count >= 8 * step) {
    done = before_boundary(out, register_size, sizeof(typename Cast::Out));
    cast_each<Cast>(in, out, done);
  }
  for (; done + step <= count; done += step) {
    Step<Cast>::run(in + done * sizeof(typename Cast::In), out + done * sizeof(typename Cast::Out));
  }
  cast_each<Cast>(in + done * sizeof(typename Cast::In), out + done * sizeof(typename Cast::Out), count - done);
}

}  // namespace

const Table avx2_table = {
    "avx2",
    {{nullptr, run<F32ToBf16>, run<F32ToF16>},
     {run<Bf16ToF32>, nullptr, run<Bf16ToF16>},
     {run<F16ToF32>, run<F16ToBf16>, nullptr}},
    &avx2_fused,
    nullptr,
    false,
};

}  // namespace habana_mp::kernels

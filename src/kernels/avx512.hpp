// Code shared by the AVX-512 files. Each file compiles its own copy with its own flags.
#pragma once

// GCC 12 reports the deliberately undefined registers of its own intrinsics as mistakes (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include "kernels/bits.hpp"
#include "kernels/table.hpp"

namespace habana_mp::kernels {
namespace {  // NOLINT(google-build-namespaces): see above

constexpr std::size_t step = 32;
constexpr std::size_t register_size = 64;

// Returns a mask of the first `count` lanes, of 32 bits each in `lanes32` and of 16 bits in `lanes16`.
inline __mmask16 lanes32(std::size_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffffU : (1U << count) - 1U);
}
inline __mmask32 lanes16(std::size_t count) { return count >= 32 ? 0xffffffffU : (1U << count) - 1U; }

constexpr int f16_rounding = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

inline __m256i f16_of(__m512i f32_bits) { return _mm512_cvtps_ph(_mm512_castsi512_ps(f32_bits), f16_rounding); }

// Access to the elements of a step in memory: the whole step, or its first `count` elements.
struct Whole {
  static __m512i load32(const unsigned char* from, std::size_t at) { return _mm512_loadu_si512(from + at * 4); }
  // Loading half a register costs less than splitting a whole one.
  static __m256i load16(const unsigned char* from, std::size_t at) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at * 2));
  }
  static __m256i load_as_f16(const unsigned char* from, std::size_t at) { return f16_of(load32(from, at)); }
  static void store32(unsigned char* to, std::size_t at, __m512i value) { _mm512_storeu_si512(to + at * 4, value); }
  static void store16(unsigned char* to, __m512i value) { _mm512_storeu_si512(to, value); }
};

struct First {
  std::size_t count;

  [[nodiscard]] std::size_t after(std::size_t at) const { return count > at ? count - at : 0; }
  __m512i load32(const unsigned char* from, std::size_t at) const {
    return _mm512_maskz_loadu_epi32(lanes32(after(at)), from + at * 4);
  }
  __m256i load_as_f16(const unsigned char* from, std::size_t at) const { return f16_of(load32(from, at)); }
  __m256i load16(const unsigned char* from, std::size_t at) const {
    return _mm256_maskz_loadu_epi16(lanes32(after(at)), from + at * 2);
  }
  void store32(unsigned char* to, std::size_t at, __m512i value) const {
    _mm512_mask_storeu_epi32(to + at * 4, lanes32(after(at)), value);
  }
  void store16(unsigned char* to, __m512i value) const { _mm512_mask_storeu_epi16(to, lanes16(count), value); }
};

// The bfloat16 is in the upper half of each lane; the lower half is meaningless.
inline __m512i round_to_bf16(__m512i x) {
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(x, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(x, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  // Doubling drops the sign bit; a NaN is then above infinity.
  const __mmask16 nan =
      _mm512_cmpgt_epu32_mask(_mm512_add_epi32(x, x), _mm512_set1_epi32(static_cast<int>(0xff000000U)));
  return _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc00000));
}

// Returns the upper halves of a's lanes, then those of b's.
inline __m512i upper_halves(__m512i a, __m512i b) {
  alignas(64) static constexpr std::uint16_t odd_words[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                              23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                              45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  return _mm512_permutex2var_epi16(a, _mm512_load_si512(odd_words), b);
}

inline __m512i f32_bits_of_bf16(__m256i x) { return _mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16); }
inline __m512i f32_bits_of_f16(__m256i x) { return _mm512_castps_si512(_mm512_cvtph_ps(x)); }
inline __m512i join(__m256i low, __m256i high) { return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1); }

inline __m512 f32_in_all_lanes(std::uint16_t bf16) {
  return _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(f32_of_bf16(bf16))));
}

// Returns the bfloat16 in the lower half (`even_of`) or in the upper half (`odd_of`) of each lane, as float32.
inline __m512 even_of(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
inline __m512 odd_of(__m512i pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000U))));
}

inline __m512i bf16_by_integers(__m512i a, __m512i b) { return upper_halves(round_to_bf16(a), round_to_bf16(b)); }

// `Narrow` converts 32 float32 to 32 bfloat16: `any` accepts all values, `normal` only values that are not denormal.
template <class Cast, class Narrow>
struct Step;

template <class Narrow>
struct Step<F32ToBf16, Narrow> {
  template <class Memory>
  static void run(const Memory& memory, const unsigned char* in, unsigned char* out) {
    memory.store16(out, Narrow::any(memory.load32(in, 0), memory.load32(in, 16)));
  }
};

template <class Narrow>
struct Step<F32ToF16, Narrow> {
  template <class Memory>
  static void run(const Memory& memory, const unsigned char* in, unsigned char* out) {
    memory.store16(out, join(memory.load_as_f16(in, 0), memory.load_as_f16(in, 16)));
  }
};

template <class Narrow>
struct Step<Bf16ToF32, Narrow> {
  template <class Memory>
  static void run(const Memory& memory, const unsigned char* in, unsigned char* out) {
    memory.store32(out, 0, f32_bits_of_bf16(memory.load16(in, 0)));
    memory.store32(out, 16, f32_bits_of_bf16(memory.load16(in, 16)));
  }
};

template <class Narrow>
struct Step<Bf16ToF16, Narrow> {
  template <class Memory>
  static void run(const Memory& memory, const unsigned char* in, unsigned char* out) {
    memory.store16(
        out, join(f16_of(f32_bits_of_bf16(memory.load16(in, 0))), f16_of(f32_bits_of_bf16(memory.load16(in, 16)))));
  }
};

template <class Narrow>
struct Step<F16ToF32, Narrow> {
  template <class Memory>
  static void run(const Memory& memory, const unsigned char* in, unsigned char* out) {
    memory.store32(out, 0, f32_bits_of_f16(memory.load16(in, 0)));
    memory.store32(out, 16, f32_bits_of_f16(memory.load16(in, 16)));
  }
};

// No float16 value is denormal in float32.
template <class Narrow>
struct Step<F16ToBf16, Narrow> {
  template <class Memory>
  static void run(const Memory& memory, const unsigned char* in, unsigned char* out) {
    memory.store16(out, Narrow::normal(f32_bits_of_f16(memory.load16(in, 0)), f32_bits_of_f16(memory.load16(in, 16))));
  }
};

template <class Cast, class Narrow>
void run(const void* source, void* target, std::size_t count) noexcept {
  const auto* in = static_cast<const unsigned char*>(source);
  auto* out = static_cast<unsigned char*>(target);
  std::size_t done = 0;
  if (count >= 8 * step) {
    done = before_boundary(out, register_size, sizeof(typename Cast::Out));
    if (done != 0) {
      Step<Cast, Narrow>::run(First{done}, in, out);
    }
  }
  for (; done + step <= count; done += step) {
    Step<Cast, Narrow>::run(Whole{}, in + done * sizeof(typename Cast::In), out + done * sizeof(typename Cast::Out));
  }
  if (done != count) {
    Step<Cast, Narrow>::run(First{count - done}, in + done * sizeof(typename Cast::In),
                            out + done * sizeof(typename Cast::Out));
  }
}

}  // namespace
}  // namespace habana_mp::kernels

// Code shared by the two files for Advanced SIMD on aarch64. Each file compiles its own copy with its own flags. FCVTN,
// FCVTL and BFCVTN take the rounding mode, the flushing of denormals and the float16 format from FPCR, so FPCR has its
// default value during a call.
#pragma once

#include <arm_neon.h>

#include "kernels/bits.hpp"
#include "kernels/table.hpp"

namespace habana_mp::kernels {
namespace {  // NOLINT(google-build-namespaces): see above

constexpr std::size_t step = 8;

class DefaultFpcr {
 public:
  DefaultFpcr() {
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved_));
    set(0);
  }
  ~DefaultFpcr() { set(saved_); }
  DefaultFpcr(const DefaultFpcr&) = delete;
  DefaultFpcr& operator=(const DefaultFpcr&) = delete;

 private:
  // The clobber keeps the compiler from moving a conversion, whose operand comes from memory, across this instruction.
  static void set(std::uint64_t value) { __asm__ volatile("msr fpcr, %0" : : "r"(value) : "memory"); }

  std::uint64_t saved_ = 0;
};

inline uint32x4_t load32(const unsigned char* from) { return vreinterpretq_u32_u8(vld1q_u8(from)); }
inline uint16x8_t load16(const unsigned char* from) { return vreinterpretq_u16_u8(vld1q_u8(from)); }
inline void store32(unsigned char* to, uint32x4_t value) { vst1q_u8(to, vreinterpretq_u8_u32(value)); }
inline void store16(unsigned char* to, uint16x8_t value) { vst1q_u8(to, vreinterpretq_u8_u16(value)); }

inline uint16x4_t bf16_by_integers(uint32x4_t x) {
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(x, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(x, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  const uint32x4_t nan = vcgtq_u32(vandq_u32(x, vdupq_n_u32(0x7fffffff)), vdupq_n_u32(0x7f800000));
  return vshrn_n_u32(vbslq_u32(nan, vdupq_n_u32(0x7fc00000), rounded), 16);
}

inline uint16x4_t f16_of(uint32x4_t f32_bits) {
  return vreinterpret_u16_f16(vcvt_f16_f32(vreinterpretq_f32_u32(f32_bits)));
}

inline uint32x4_t f32_bits_of_bf16(uint16x4_t x) { return vshll_n_u16(x, 16); }
inline uint32x4_t f32_bits_of_f16(uint16x4_t x) { return vreinterpretq_u32_f32(vcvt_f32_f16(vreinterpret_f16_u16(x))); }

// `Narrow` converts 4 float32 to 4 bfloat16.
template <class Cast, class Narrow>
struct Step;

template <class Narrow>
struct Step<F32ToBf16, Narrow> {
  static void run(const unsigned char* in, unsigned char* out) {
    store16(out, vcombine_u16(Narrow::bf16_of(load32(in)), Narrow::bf16_of(load32(in + 16))));
  }
};

template <class Narrow>
struct Step<F32ToF16, Narrow> {
  static void run(const unsigned char* in, unsigned char* out) {
    store16(out, vcombine_u16(f16_of(load32(in)), f16_of(load32(in + 16))));
  }
};

template <class Narrow>
struct Step<Bf16ToF32, Narrow> {
  static void run(const unsigned char* in, unsigned char* out) {
    const uint16x8_t x = load16(in);
    store32(out, f32_bits_of_bf16(vget_low_u16(x)));
    store32(out + 16, f32_bits_of_bf16(vget_high_u16(x)));
  }
};

template <class Narrow>
struct Step<Bf16ToF16, Narrow> {
  static void run(const unsigned char* in, unsigned char* out) {
    const uint16x8_t x = load16(in);
    store16(out, vcombine_u16(f16_of(f32_bits_of_bf16(vget_low_u16(x))), f16_of(f32_bits_of_bf16(vget_high_u16(x)))));
  }
};

template <class Narrow>
struct Step<F16ToF32, Narrow> {
  static void run(const unsigned char* in, unsigned char* out) {
    const uint16x8_t x = load16(in);
    store32(out, f32_bits_of_f16(vget_low_u16(x)));
    store32(out + 16, f32_bits_of_f16(vget_high_u16(x)));
  }
};

template <class Narrow>
struct Step<F16ToBf16, Narrow> {
  static void run(const unsigned char* in, unsigned char* out) {
    const uint16x8_t x = load16(in);
    store16(out, vcombine_u16(Narrow::bf16_of(f32_bits_of_f16(vget_low_u16(x))),
                              Narrow::bf16_of(f32_bits_of_f16(vget_high_u16(x)))));
  }
};

template <class Cast, class Narrow>
void run(const void* source, void* target, std::size_t count) noexcept {
  const DefaultFpcr fpcr;
  const auto* in = static_cast<const unsigned char*>(source);
  auto* out = static_cast<unsigned char*>(target);
  std::size_t done = 0;
  for (; done + step <= count; done += step) {
    Step<Cast, Narrow>::run(in + done * sizeof(typename Cast::In), out + done * sizeof(typename Cast::Out));
  }
  cast_each<Cast>(in + done * sizeof(typename Cast::In), out + done * sizeof(typename Cast::Out), count - done);
}

}  // namespace
}  // namespace habana_mp::kernels

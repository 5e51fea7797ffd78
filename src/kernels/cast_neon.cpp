// Advanced SIMD of aarch64. The bfloat16 half is integer arithmetic; FCVTN and FCVTL take the rounding mode and the
// choice of float16's format from FPCR, so FPCR is put to its default for the length of a call.
#include <arm_neon.h>

#include "kernels/bits.hpp"
#include "kernels/stochastic.hpp"
#include "kernels/table.hpp"

namespace habana_mp::kernels {
namespace {

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
  // The clobber keeps the compiler from moving a conversion, which is fed from memory, to the other side.
  static void set(std::uint64_t value) { __asm__ volatile("msr fpcr, %0" : : "r"(value) : "memory"); }

  std::uint64_t saved_ = 0;
};

uint32x4_t load32(const unsigned char* from) { return vreinterpretq_u32_u8(vld1q_u8(from)); }
uint16x8_t load16(const unsigned char* from) { return vreinterpretq_u16_u8(vld1q_u8(from)); }
void store32(unsigned char* to, uint32x4_t value) { vst1q_u8(to, vreinterpretq_u8_u32(value)); }
void store16(unsigned char* to, uint16x8_t value) { vst1q_u8(to, vreinterpretq_u8_u16(value)); }

uint16x4_t bf16_of(uint32x4_t x) {
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(x, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(x, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  const uint32x4_t nan = vcgtq_u32(vandq_u32(x, vdupq_n_u32(0x7fffffff)), vdupq_n_u32(0x7f800000));
  return vshrn_n_u32(vbslq_u32(nan, vdupq_n_u32(0x7fc00000), rounded), 16);
}

uint16x4_t f16_of(uint32x4_t f32_bits) { return vreinterpret_u16_f16(vcvt_f16_f32(vreinterpretq_f32_u32(f32_bits))); }

uint32x4_t f32_bits_of_bf16(uint16x4_t x) { return vshll_n_u16(x, 16); }
uint32x4_t f32_bits_of_f16(uint16x4_t x) { return vreinterpretq_u32_f32(vcvt_f32_f16(vreinterpret_f16_u16(x))); }

template <class Cast>
struct Step;

template <>
struct Step<F32ToBf16> {
  static void run(const unsigned char* in, unsigned char* out) {
    store16(out, vcombine_u16(bf16_of(load32(in)), bf16_of(load32(in + 16))));
  }
};

template <>
struct Step<F32ToF16> {
  static void run(const unsigned char* in, unsigned char* out) {
    store16(out, vcombine_u16(f16_of(load32(in)), f16_of(load32(in + 16))));
  }
};

template <>
struct Step<Bf16ToF32> {
  static void run(const unsigned char* in, unsigned char* out) {
    const uint16x8_t x = load16(in);
    store32(out, f32_bits_of_bf16(vget_low_u16(x)));
    store32(out + 16, f32_bits_of_bf16(vget_high_u16(x)));
  }
};

template <>
struct Step<Bf16ToF16> {
  static void run(const unsigned char* in, unsigned char* out) {
    const uint16x8_t x = load16(in);
    store16(out, vcombine_u16(f16_of(f32_bits_of_bf16(vget_low_u16(x))), f16_of(f32_bits_of_bf16(vget_high_u16(x)))));
  }
};

template <>
struct Step<F16ToF32> {
  static void run(const unsigned char* in, unsigned char* out) {
    const uint16x8_t x = load16(in);
    store32(out, f32_bits_of_f16(vget_low_u16(x)));
    store32(out + 16, f32_bits_of_f16(vget_high_u16(x)));
  }
};

template <>
struct Step<F16ToBf16> {
  static void run(const unsigned char* in, unsigned char* out) {
    const uint16x8_t x = load16(in);
    store16(out, vcombine_u16(bf16_of(f32_bits_of_f16(vget_low_u16(x))), bf16_of(f32_bits_of_f16(vget_high_u16(x)))));
  }
};

template <class Cast>
void run(const void* source, void* target, std::size_t count, bool /*stream*/) noexcept {
  const DefaultFpcr fpcr;
  const auto* in = static_cast<const unsigned char*>(source);
  auto* out = static_cast<unsigned char*>(target);
  std::size_t done = 0;
  for (; done + step <= count; done += step) {
    Step<Cast>::run(in + done * sizeof(typename Cast::In), out + done * sizeof(typename Cast::Out));
  }
  cast_each<Cast>(in + done * sizeof(typename Cast::In), out + done * sizeof(typename Cast::Out), count - done);
}

}  // namespace

const Table neon_table = {
    "neon",
    {{nullptr, run<F32ToBf16>, run<F32ToF16>},
     {run<Bf16ToF32>, nullptr, run<Bf16ToF16>},
     {run<F16ToF32>, run<F16ToBf16>, nullptr}},
    round_stochastically,
};

}  // namespace habana_mp::kernels

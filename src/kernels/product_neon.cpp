#include "kernels/neon.hpp"
#include "kernels/product_fma.hpp"

namespace habana_mp::kernels {
namespace {

struct Neon {
  using Floats = float32x4_t;
  using Words = uint32x4_t;
  static constexpr std::size_t lanes = 4;
  static constexpr std::size_t most_sums = 24;  // of 32 registers
  static constexpr std::size_t few_rows = 4;

  static Floats zero() { return vdupq_n_f32(0); }
  static Floats load(const float* from) { return vld1q_f32(from); }
  static void store(float* to, Floats value) { vst1q_f32(to, value); }
  static Floats in_all_lanes(float one) { return vdupq_n_f32(one); }
  static Floats add(Floats a, Floats b) { return vaddq_f32(a, b); }
  static Floats add_product(Floats a, Floats b, Floats sum) { return vfmaq_f32(sum, a, b); }
  static Words load_words(const std::uint16_t* from) { return vreinterpretq_u32_u16(vld1q_u16(from)); }

  static void transpose(Words (&rows)[lanes]) {
    const auto wide = [](Words one) { return vreinterpretq_u64_u32(one); };
    const auto narrow = [](uint64x2_t one) { return vreinterpretq_u32_u64(one); };
    const Words a = vtrn1q_u32(rows[0], rows[1]);
    const Words b = vtrn2q_u32(rows[0], rows[1]);
    const Words c = vtrn1q_u32(rows[2], rows[3]);
    const Words d = vtrn2q_u32(rows[2], rows[3]);
    rows[0] = narrow(vtrn1q_u64(wide(a), wide(c)));
    rows[1] = narrow(vtrn1q_u64(wide(b), wide(d)));
    rows[2] = narrow(vtrn2q_u64(wide(a), wide(c)));
    rows[3] = narrow(vtrn2q_u64(wide(b), wide(d)));
  }

  static Floats floats(uint32x4_t bits) { return vreinterpretq_f32_u32(bits); }

  struct Bf16 {
    static Floats even(Words pairs) { return floats(vshlq_n_u32(pairs, 16)); }
    static Floats odd(Words pairs) { return floats(vandq_u32(pairs, vdupq_n_u32(0xffff0000U))); }
    static Floats load(const std::uint16_t* from) { return floats(f32_bits_of_bf16(vld1_u16(from))); }
  };
  struct F16 {
    static Floats even(Words pairs) { return floats(f32_bits_of_f16(vmovn_u32(pairs))); }
    static Floats odd(Words pairs) { return floats(f32_bits_of_f16(vshrn_n_u32(pairs, 16))); }
    static Floats load(const std::uint16_t* from) { return floats(f32_bits_of_f16(vld1_u16(from))); }
  };
};

}  // namespace

constinit const FusedKernels neon_fused = fused_kernels_of<Neon>();

}  // namespace habana_mp::kernels

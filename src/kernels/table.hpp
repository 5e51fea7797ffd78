// The kernels of one instruction set. Files compiled with wider instruction flags include this header and no header
// with inline functions of external linkage: the linker might use their copy of such a function for the whole module.
#pragma once

#include <cstddef>

#include "kernels/product_table.hpp"

namespace habana_mp::kernels {

// Casts `count` elements. Neither pointer needs any alignment, not even that of an element.
using Kernel = void (*)(const void* source, void* target, std::size_t count) noexcept;

struct Table {
  const char* name;
  Kernel convert[3][3];            // [from][to], in the order of Float; null on the diagonal: a copy needs no kernel
  const FusedKernels* fused;       // products in float32; null if the instruction set has none
  const ProductKernels* products;  // products in bfloat16; null if the instruction set has none, or we use none
  bool multiplies_bfloat16;        // the instruction set has such instructions
};

extern const Table scalar_table;
extern const Table avx2_table;
extern const Table avx512_table;
extern const Table avx512_bf16_table;
extern const Table amx_table;
extern const Table neon_table;
extern const Table neon_bf16_table;

}  // namespace habana_mp::kernels

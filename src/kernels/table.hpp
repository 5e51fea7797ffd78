// The kernels of one instruction set. Files compiled with wider instruction flags include this header and no header
// with inline functions of external linkage: the linker might use their copy of such a function for the whole module.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/product_table.hpp"
#include "kernels/step_table.hpp"

namespace habana_mp::kernels {

// Casts `count` elements. If `stream` is true, uses stores that bypass the caches when the instruction set has them.
// Neither pointer needs any alignment, not even that of an element.
using Kernel = void (*)(const void* source, void* target, std::size_t count, bool stream) noexcept;

// Rounds `count` float32 values to bfloat16 stochastically. They are the elements of an array from index `first` on,
// which must be a multiple of 256. Every instruction set gives the same bits.
using StochasticKernel = void (*)(const void* source, void* target, std::size_t count, std::uint64_t seed,
                                  std::uint64_t first) noexcept;

struct Table {
  const char* name;
  Kernel convert[3][3];  // [from][to], in the order of Float; null on the diagonal: a copy needs no kernel
  StochasticKernel stochastic;
  const StepKernels* steps;
  const ProductKernels* products;  // null if the instruction set has none
};

extern const Table scalar_table;
extern const Table avx2_table;
extern const Table avx512_table;
extern const Table avx512_bf16_table;
extern const Table amx_table;
extern const Table neon_table;
extern const Table neon_bf16_table;

}  // namespace habana_mp::kernels

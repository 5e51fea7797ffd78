// The choice of an instruction set. The casts use it, and the bindings report and test it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kernels/cast.hpp"
#include "kernels/table.hpp"

namespace habana_mp::kernels {

// The instruction sets that this processor can run, the simplest first.
std::span<const Table* const> supported() noexcept;

// The instruction set in use.
const Table& chosen() noexcept;

// Returns null if there is no instruction set of this name, or if this processor cannot run it.
const Table* find(std::string_view name) noexcept;

// Returns an error message if the value of HABANA_MP_KERNELS is wrong, else nothing. A wrong value changes no cast: the
// instruction set is chosen from the processor.
std::optional<std::string> complaint();

// Casts with every choice made by the caller: on `threads` threads, or fewer if there are fewer pieces.
void cast_with(const Table& table, const Job& job, unsigned threads) noexcept;

}  // namespace habana_mp::kernels

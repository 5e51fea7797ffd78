// The choice of an instruction set, for the casts themselves and for the bindings that report and test it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kernels/cast.hpp"
#include "kernels/table.hpp"

namespace habana_mp::kernels {

// What this processor can run, the plainest first.
std::span<const Table* const> supported() noexcept;

// What was chosen.
const Table& chosen() noexcept;

// Stores past the caches save reading what is to be overwritten, but leave nothing in the caches for whoever comes
// next. Measured, whoever reads the target next included: on one thread they win once the source, counted twice, and
// the target fill the last-level cache. Several threads have no more of the memory's speed for such stores than one
// has, but more of the cache's: there they win once the two arrays alone fill it.
bool is_worth_streaming(std::size_t source_bytes, std::size_t target_bytes, unsigned threads) noexcept;

// nullptr where this processor cannot run it, or there is no such instruction set.
const Table* find(std::string_view name) noexcept;

// What is wrong with the value of HABANA_MP_KERNELS, or nothing. A wrong value changes no cast: the processor chooses.
std::optional<std::string> complaint();

// Casts that leave nothing to be decided: on `threads` threads, unless there are fewer pieces to share out, and with
// stores that bypass the caches if `stream` says so and the instruction set has them.
void cast_with(const Table& table, const void* source, Float from, void* target, Float to, std::size_t count,
               unsigned threads, bool stream) noexcept;
void cast_many_with(const Table& table, std::span<Job> jobs, unsigned threads, bool stream) noexcept;
void cast_stochastically_with(const Table& table, const void* source, void* target, std::size_t count,
                              std::uint64_t seed, unsigned threads) noexcept;

}  // namespace habana_mp::kernels

#include "kernels/dispatch.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "kernels/threads.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace habana_mp::kernels {
namespace {

constexpr const char* variable = "HABANA_MP_KERNELS";
constexpr std::array<std::string_view, 7> all_names = {"scalar", "avx2", "avx512",   "avx512_bf16",
                                                       "amx",    "neon", "neon_bf16"};

// In elements, as in torch: below this a second thread gains nothing.
constexpr std::size_t threads_from = std::size_t{1} << 15;

// What one thread takes at a time: large enough for the hardware prefetcher.
constexpr std::size_t piece_bytes = std::size_t{96} << 10;

class Choice {
 public:
  Choice() {
    add(scalar_table);
    add_vectors();
    table_ = supported_[count_ - 1];
    const char* value = std::getenv(variable);
    forced_ = value != nullptr ? value : "";
    if (const Table* wanted = find(forced_)) {
      table_ = wanted;
    }
  }

  [[nodiscard]] const Table& table() const { return *table_; }
  [[nodiscard]] std::string_view forced() const { return forced_; }
  [[nodiscard]] std::span<const Table* const> supported() const { return {supported_.data(), count_}; }

  [[nodiscard]] const Table* find(std::string_view name) const {
    const auto tables = supported();
    const auto found =
        std::find_if(tables.begin(), tables.end(), [&](const Table* table) { return table->name == name; });
    return found != tables.end() ? *found : nullptr;
  }

 private:
  void add(const Table& table) { supported_[count_++] = &table; }

  void add_vectors() {
#if defined(__x86_64__)
    // The compiler's check also asks the operating system whether it saves the wide registers. F16C is checked
    // separately because some compilers do not support its name in that check.
    unsigned eax = 0;
    unsigned ebx = 0;
    unsigned ecx = 0;
    unsigned edx = 0;
    const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
    __builtin_cpu_init();
    if (!f16c || !__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return;
    add(avx2_table);
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq")) {
      return;
    }
    add(avx512_table);
    if (!__builtin_cpu_supports("avx512bf16")) return;
    add(avx512_bf16_table);
#if defined(HABANA_MP_AMX)
    if (has_amx()) {
      add(amx_table);
    }
#endif
#elif defined(__aarch64__)
    add(neon_table);                               // part of the baseline
#if defined(HABANA_MP_NEON_BF16)
    constexpr unsigned long has_bf16 = 1UL << 14;  // HWCAP2_BF16, which older headers do not define
    if ((getauxval(AT_HWCAP2) & has_bf16) != 0) {
      add(neon_bf16_table);
    }
#endif
#endif
  }

#if defined(HABANA_MP_AMX)
  // Checked by hand because compilers added the names of these features at different times. product.cpp checks for
  // permission to use the tiles.
  static bool has_amx() {
    unsigned eax = 0;
    unsigned ebx = 0;
    unsigned ecx = 0;
    unsigned edx = 0;
    constexpr unsigned keeps_states = 1U << 27;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & keeps_states) == 0) return false;
    constexpr unsigned tiles_and_bf16 = (1U << 24) | (1U << 22);
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (edx & tiles_and_bf16) != tiles_and_bf16) return false;
    constexpr unsigned tile_states = (1U << 17) | (1U << 18);
    asm("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
    return (eax & tile_states) == tile_states;
  }
#endif

  std::array<const Table*, all_names.size()> supported_{};
  std::size_t count_ = 0;
  const Table* table_ = nullptr;
  std::string_view forced_;
};

const Choice& choice() noexcept {
  static const Choice once;
  return once;
}

struct Work {
  const Table* table;
  const Job* job;
};

void run(const void* context, std::size_t begin, std::size_t end) noexcept {
  const Work& work = *static_cast<const Work*>(context);
  work.job->run(*work.table, begin, end);
}

}  // namespace

const Table& chosen() noexcept { return choice().table(); }

std::span<const Table* const> supported() noexcept { return choice().supported(); }

const Table* find(std::string_view name) noexcept { return choice().find(name); }

std::optional<std::string> complaint() {
  const std::string_view value = choice().forced();
  if (value.empty() || find(value) != nullptr) return std::nullopt;
  std::string usable;
  for (const Table* table : supported()) {
    usable += (usable.empty() ? "" : ", ") + std::string(table->name);
  }
  const bool known = std::find(all_names.begin(), all_names.end(), value) != all_names.end();
  return "The environment variable `" + std::string(variable) + "` must be one of " + usable +
         " on this machine, or unset to use the fastest, got '" + std::string(value) + "', which " +
         (known ? "this processor cannot run" : "is not the name of an instruction set known here");
}

void cast_with(const Table& table, const Job& job, unsigned threads) noexcept {
  const Work work{&table, &job};
  parallel_for(job.units(), std::max<std::size_t>(piece_bytes / job.unit_bytes(), 1), threads, run, &work);
}

void cast(const Job& job, unsigned threads) noexcept {
  cast_with(choice().table(), job, job.count() < threads_from ? 1 : threads);
}

const char* path() noexcept { return choice().table().name; }

}  // namespace habana_mp::kernels

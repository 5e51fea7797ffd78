#include "kernels/dispatch.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

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

// Measured, in elements. Below the first threshold a second thread gains nothing. Between the two it gains only if
// threads need not be woken for this cast alone: waking them takes about as long as the calling thread takes for the
// second threshold.
constexpr std::size_t threads_from_in_burst = std::size_t{1} << 15;
constexpr std::size_t threads_from_alone = std::size_t{1} << 20;
constexpr std::chrono::microseconds burst_gap{
    120};  // from start to start: a cast below the second threshold, and the pause after it

// A multiple of all cache line and register sizes, so that every piece has the same alignment as the first.
constexpr std::size_t piece = std::size_t{1} << 14;
constexpr std::size_t streamed_piece = std::size_t{1} << 18;  // longer: the hardware prefetcher must adapt first
constexpr std::size_t most_bytes_an_element = 6;

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
  [[nodiscard]] std::size_t last_level_cache() const { return last_level_cache_; }

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
    if (!f16c || !__builtin_cpu_supports("avx2")) {
      return;
    }
    add(avx2_table);
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq")) {
      return;
    }
    add(avx512_table);
    if (!__builtin_cpu_supports("avx512bf16")) {
      return;
    }
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
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & keeps_states) == 0) {
      return false;
    }
    constexpr unsigned tiles_and_bf16 = (1U << 24) | (1U << 22);
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (edx & tiles_and_bf16) != tiles_and_bf16) {
      return false;
    }
    constexpr unsigned tile_states = (1U << 17) | (1U << 18);
    asm("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
    return (eax & tile_states) == tile_states;
  }
#endif

  // The figure of sysconf is not used: on some processors the C library adds up caches that no single core can use.
  static std::size_t measure_last_level_cache() {
    for (const char* file :
         {"/sys/devices/system/cpu/cpu0/cache/index3/size", "/sys/devices/system/cpu/cpu0/cache/index2/size"}) {
      if (std::FILE* opened = std::fopen(file, "re")) {
        unsigned long kibibytes = 0;
        const int read = std::fscanf(opened, "%luK", &kibibytes);
        std::fclose(opened);
        if (read == 1 && kibibytes != 0) {
          return std::size_t{kibibytes} << 10;
        }
      }
    }
    return std::size_t{32} << 20;
  }

  std::array<const Table*, all_names.size()> supported_{};
  std::size_t count_ = 0;
  const Table* table_ = nullptr;
  std::string_view forced_;
  std::size_t last_level_cache_ = measure_last_level_cache();
};

const Choice& choice() noexcept {
  static const Choice once;
  return once;
}

// True if a cast is worth sharing among threads. A cast soon after another one counts as part of a burst.
bool is_worth_threads(std::size_t count, bool beside_team = false) noexcept {
  static std::atomic<std::chrono::steady_clock::rep> last{0};
  if (count < threads_from_in_burst) {
    return false;
  }
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const std::chrono::steady_clock::duration before{last.exchange(now.count(), std::memory_order_relaxed)};
  return (beside_team && has_team()) || count >= threads_from_alone || now - before < burst_gap;
}

// True if stores that bypass the caches are worthwhile. They avoid reading the memory that they overwrite, but leave
// nothing in the caches for the code that reads the target next. Measured, with that read included: on one thread they
// win once twice the source plus the target fill the last-level cache. Several threads get no more memory bandwidth for
// such stores than one thread, but more cache bandwidth. There they win only once the two arrays alone fill that cache.
bool is_worth_streaming(std::size_t source_bytes, std::size_t target_bytes, unsigned threads) noexcept {
  return source_bytes * (threads > 1 ? 1 : 2) + target_bytes >= choice().last_level_cache();
}

struct Contiguous {
  Kernel kernel;
  const unsigned char* source;
  std::size_t source_size;
  unsigned char* target;
  std::size_t target_size;
  bool stream;
};

void run(const void* context, std::size_t begin, std::size_t end) noexcept {
  const Contiguous& job = *static_cast<const Contiguous*>(context);
  const unsigned char* source = job.source + begin * job.source_size;
  unsigned char* target = job.target + begin * job.target_size;
  if (job.kernel != nullptr) {
    job.kernel(source, target, end - begin, job.stream);
  } else {
    std::memcpy(target, source, (end - begin) * job.source_size);
  }
}

struct Batch {
  const Table* table;
  std::span<const Job> jobs;
  bool stream;
};

// A unit of a job runs on the thread that has its first byte.
void run_batch(const void* context, std::size_t begin, std::size_t end) noexcept {
  const Batch& batch = *static_cast<const Batch*>(context);
  auto job = std::upper_bound(batch.jobs.begin(), batch.jobs.end(), begin,
                              [](std::size_t at, const Job& other) { return at < other.begin; });
  for (--job; job != batch.jobs.end() && job->begin < end; ++job) {
    const auto units_before = [&](std::size_t byte) {
      const std::size_t bytes = byte > job->begin ? byte - job->begin : 0;
      return std::min(job->units(), (bytes + job->unit_bytes() - 1) / job->unit_bytes());
    };
    job->run(*batch.table, units_before(begin), units_before(end), batch.stream);
  }
}

void choose_and_cast_many(std::span<Job> jobs, unsigned threads, bool beside_team) noexcept {
  std::size_t count = 0;
  std::size_t source_bytes = 0;
  std::size_t target_bytes = 0;
  for (const Job& job : jobs) {
    count += job.count();
    source_bytes += job.source_bytes();
    target_bytes += job.target_bytes();
  }
  const unsigned used = threads > 1 && is_worth_threads(count, beside_team) ? threads : 1;
  cast_many_with(choice().table(), jobs, used, is_worth_streaming(source_bytes, target_bytes, used));
}

}  // namespace

const Table& chosen() noexcept { return choice().table(); }

std::span<const Table* const> supported() noexcept { return choice().supported(); }

const Table* find(std::string_view name) noexcept { return choice().find(name); }

std::optional<std::string> complaint() {
  const std::string_view value = choice().forced();
  if (value.empty() || find(value) != nullptr) {
    return std::nullopt;
  }
  std::string usable;
  for (const Table* table : supported()) {
    usable += (usable.empty() ? "" : ", ") + std::string(table->name);
  }
  const bool known = std::find(all_names.begin(), all_names.end(), value) != all_names.end();
  return "The environment variable `" + std::string(variable) + "` must be one of " + usable +
         " on this machine, or unset to use the fastest, got '" + std::string(value) + "', which " +
         (known ? "this processor cannot run" : "is not the name of an instruction set known here");
}

void cast_with(const Table& table, const void* source, Float from, void* target, Float to, std::size_t count,
               unsigned threads, bool stream) noexcept {
  if (count == 0) {
    return;  // the pointers may be null
  }
  const Contiguous job = {
      .kernel = table.convert[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)],
      .source = static_cast<const unsigned char*>(source),
      .source_size = size_of(from),
      .target = static_cast<unsigned char*>(target),
      .target_size = size_of(to),
      .stream = stream,
  };
  if (threads > 1) {
    parallel_for(count, stream ? streamed_piece : piece, threads, run, &job);
  } else {
    run(&job, 0, count);
  }
}

void cast(const void* source, Float from, void* target, Float to, std::size_t count, unsigned threads) noexcept {
  const unsigned used = threads > 1 && is_worth_threads(count) ? threads : 1;
  cast_with(choice().table(), source, from, target, to, count, used,
            is_worth_streaming(count * size_of(from), count * size_of(to), used));
}

void cast_many_with(const Table& table, std::span<Job> jobs, unsigned threads, bool stream) noexcept {
  std::size_t bytes = 0;
  for (Job& job : jobs) {
    job.begin = bytes;
    bytes += job.units() * job.unit_bytes();
  }
  if (bytes == 0) {
    return;
  }
  const Batch batch{.table = &table, .jobs = jobs, .stream = stream};
  if (threads > 1) {
    parallel_for(bytes, (stream ? streamed_piece : piece) * most_bytes_an_element, threads, run_batch, &batch);
  } else {
    run_batch(&batch, 0, bytes);
  }
}

void cast_many(std::span<Job> jobs, unsigned threads) noexcept { choose_and_cast_many(jobs, threads, false); }

void cast_many_beside_team(std::span<Job> jobs, unsigned threads) noexcept {
  choose_and_cast_many(jobs, threads, true);
}

const char* path() noexcept { return choice().table().name; }

}  // namespace habana_mp::kernels

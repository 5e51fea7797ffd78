// The memory's own speed: plain copies, and loops with stores that bypass the caches.
#include <stddef.h>
#include <string.h>
#ifdef __AVX__
#include <immintrin.h>
#endif

enum { line = 64 };

// Reads `read` lines, writes `written` lines that hold some of their bits, `steps` times; of one each it is a copy.
static void pass_by_caches(const char* source, char* target, size_t steps, int read, int written) {
#ifdef __AVX__
  for (size_t step = 0; step < steps; ++step) {
    __m256d low = _mm256_load_pd((const double*)source);
    __m256d high = _mm256_load_pd((const double*)(source + line / 2));
    for (int i = 1; i < read; ++i) {
      low = _mm256_or_pd(low, _mm256_load_pd((const double*)(source + i * line)));
      high = _mm256_or_pd(high, _mm256_load_pd((const double*)(source + i * line + line / 2)));
    }
    for (int i = 0; i < written; ++i) {
      _mm256_stream_pd((double*)(target + i * line), low);
      _mm256_stream_pd((double*)(target + i * line + line / 2), high);
    }
    source += read * line;
    target += written * line;
  }
  _mm_sfence();
#else
  for (size_t step = 0; step < steps; ++step) {
    for (int i = 0; i < written; ++i) memcpy(target + (step * written + i) * line, source + step * read * line, line);
  }
#endif
}

static void run(const char* source, char* target, size_t steps, int read, int written, int bypass) {
  if (!bypass) {
    memcpy(target, source, steps * line);
  } else if (read == written) {  // numbers that the compiler knows unroll its loops
    pass_by_caches(source, target, steps, 1, 1);
  } else if (read < written) {
    pass_by_caches(source, target, steps, 1, 2);
  } else {
    pass_by_caches(source, target, steps, 2, 1);
  }
}

// One line each, or twice as many of one as of the other. All addresses are multiples of 64. Without `bypass`, a plain
// copy.
void move(const char* source, char* target, size_t steps, int read, int written, int threads, int bypass) {
  if (threads == 1) {
    run(source, target, steps, read, written, bypass);
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int i = 0; i < threads; ++i) {
    const size_t begin = steps * i / threads;
    const size_t end = steps * (i + 1) / threads;
    run(source + begin * read * line, target + begin * written * line, end - begin, read, written, bypass);
  }
}

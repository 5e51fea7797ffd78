// The memory's own speed: copies, and loops that read and write in other shares.
#include <stddef.h>
#include <string.h>
#ifdef __AVX__
#include <immintrin.h>
#endif

enum { line = 64 };

// Reads `read` lines and writes `written` lines with some of their bits, `steps` times.
static inline void pass(const char* source, char* target, size_t steps, int read, int written) {
#ifdef __AVX__
  for (size_t step = 0; step < steps; ++step) {
    __m256d low = _mm256_load_pd((const double*)source);
    __m256d high = _mm256_load_pd((const double*)(source + line / 2));
    for (int i = 1; i < read; ++i) {
      low = _mm256_or_pd(low, _mm256_load_pd((const double*)(source + i * line)));
      high = _mm256_or_pd(high, _mm256_load_pd((const double*)(source + i * line + line / 2)));
    }
    for (int i = 0; i < written; ++i) {
      double* to = (double*)(target + i * line);
      _mm256_store_pd(to, low);
      _mm256_store_pd(to + 4, high);
    }
    source += read * line;
    target += written * line;
  }
#else
  for (size_t step = 0; step < steps; ++step) {
    for (int i = 0; i < written; ++i) memcpy(target + (step * written + i) * line, source + step * read * line, line);
  }
#endif
}

static void run(const char* source, char* target, size_t steps, int read, int written) {
  if (read == written) {
    memcpy(target, source, steps * line);
  } else if (read < written) {  // constant numbers, so that the compiler unrolls the loops
    pass(source, target, steps, 1, 2);
  } else {
    pass(source, target, steps, 2, 1);
  }
}

// Takes one line of each, or two of one and one of the other. All addresses are multiples of 64.
void move(const char* source, char* target, size_t steps, int read, int written, int threads) {
  if (threads == 1) {
    run(source, target, steps, read, written);
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int i = 0; i < threads; ++i) {
    const size_t begin = steps * i / threads;
    const size_t end = steps * (i + 1) / threads;
    run(source + begin * read * line, target + begin * written * line, end - begin, read, written);
  }
}

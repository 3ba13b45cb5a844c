#include "arithmetic.h"

#if defined(__x86_64__)
// The library may be shared by hosts with different processors: the widest vectors are chosen at run time.
#define HARNESS_VECTORISED __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define HARNESS_VECTORISED
#endif

namespace harness {

HARNESS_VECTORISED void Add(const float* a, const float* b, float* sum, size_t count) {
  for (size_t i = 0; i < count; ++i) sum[i] = a[i] + b[i];
}

HARNESS_VECTORISED void Add(const double* a, const double* b, double* sum, size_t count) {
  for (size_t i = 0; i < count; ++i) sum[i] = a[i] + b[i];
}

HARNESS_VECTORISED void SubtractScaled(const float* sum, float rate, float* out, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] -= rate * sum[i];
}

HARNESS_VECTORISED void SubtractScaled(const double* sum, double rate, double* out, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] -= rate * sum[i];
}

}  // namespace harness

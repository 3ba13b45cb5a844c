#include "arithmetic.h"

#include <cmath>

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

HARNESS_VECTORISED void ShiftAndScale(const uint8_t* in, const float* shift, const float* factor, float* out,
                                      size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] = (static_cast<float>(in[i]) - shift[i]) * factor[i];
}

namespace {

template <typename T>
__attribute__((always_inline)) inline void Sgd(const T* sums, T rate, T* __restrict out, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] -= rate * sums[i];
}

// As TensorFlow's ResourceApplyKerasMomentum.
template <typename T>
__attribute__((always_inline)) inline void Momentum(const T* sums, const Rule<T>& rule, T* __restrict velocity,
                                                    T* __restrict out, size_t count) {
  const T rate = rule.rate, decay = rule.decay1;
  for (size_t i = 0; i < count; ++i) {
    velocity[i] = velocity[i] * decay - rate * sums[i];
    out[i] += velocity[i];
  }
}

// As TensorFlow's ResourceApplyAdam: Kingma and Ba 2015, the efficient form at the end of section 2.
template <typename T>
__attribute__((always_inline)) inline void Adam(const T* sums, const Rule<T>& rule, T* __restrict mean,
                                                T* __restrict square, T* __restrict out, size_t count) {
  const T rate = rule.rate, rest1 = 1 - rule.decay1, rest2 = 1 - rule.decay2, epsilon = rule.epsilon;
  for (size_t i = 0; i < count; ++i) {
    mean[i] += (sums[i] - mean[i]) * rest1;
    square[i] += (sums[i] * sums[i] - square[i]) * rest2;
    out[i] -= mean[i] * rate / (std::sqrt(square[i]) + epsilon);
  }
}

template <typename T>
__attribute__((always_inline)) inline void Step(const Rule<T>& rule, const T* sums, const Segment<T>& piece) {
  switch (rule.kind) {
    case Rule<T>::kSgd: return Sgd(sums, rule.rate, piece.out, piece.count);
    case Rule<T>::kMomentum: return Momentum(sums, rule, piece.first, piece.out, piece.count);
    case Rule<T>::kAdam: return Adam(sums, rule, piece.first, piece.second, piece.out, piece.count);
  }
}

}  // namespace

HARNESS_VECTORISED void Descend(const Rule<float>& rule, const float* sums, const Segment<float>& piece) {
  Step(rule, sums, piece);
}

HARNESS_VECTORISED void Descend(const Rule<double>& rule, const double* sums, const Segment<double>& piece) {
  Step(rule, sums, piece);
}

}  // namespace harness

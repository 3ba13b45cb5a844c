#include "arithmetic.h"

#include <cmath>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>

// The library may be shared by hosts with different processors: the widest vectors are chosen at run time.
#define HARNESS_VECTORISED __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define HARNESS_VECTORISED
#endif

namespace harness {
namespace {

inline float Float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t ToBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

}  // namespace

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

void Stream(const void* in, void* out, size_t bytes) {
  const char* from = static_cast<const char*>(in);
  char* to = static_cast<char*>(out);
#if defined(__x86_64__)
  const size_t first = std::min(bytes, -reinterpret_cast<uintptr_t>(to) % sizeof(__m128i));
  std::memcpy(to, from, first);
  size_t done = first;
  for (; done + sizeof(__m128i) <= bytes; done += sizeof(__m128i)) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + done), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + done)));
  }
  std::memcpy(to + done, from + done, bytes - done);
  _mm_sfence();
#else
  std::memcpy(to, from, bytes);
#endif
}

// A bfloat16 is the upper half of a float32.
HARNESS_VECTORISED void AddWide(const BFloat16* in, float* total, size_t count) {
  const uint16_t* halves = reinterpret_cast<const uint16_t*>(in);
  for (size_t i = 0; i < count; ++i) total[i] += Float(static_cast<uint32_t>(halves[i]) << 16);
}

HARNESS_VECTORISED void Narrow(const float* in, BFloat16* out, size_t count) {
  uint16_t* halves = reinterpret_cast<uint16_t*>(out);
  for (size_t i = 0; i < count; ++i) {
    const uint32_t bits = ToBits(in[i]);
    const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    halves[i] = in[i] == in[i] ? rounded : (bits >> 16 & 0x8000) | 0x7FC0;
  }
}

#if defined(__x86_64__)
namespace {

__attribute__((target("avx,f16c"))) size_t AddWideF16c(const Float16* in, float* total, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 wide = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i)));
    _mm256_storeu_ps(total + i, _mm256_add_ps(_mm256_loadu_ps(total + i), wide));
  }
  return i;
}

__attribute__((target("avx,f16c"))) size_t NarrowF16c(const float* in, Float16* out, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i narrow = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), narrow);
  }
  return i;
}

const bool kF16c = __builtin_cpu_supports("avx") && __builtin_cpu_supports("f16c");

}  // namespace
#else
constexpr bool kF16c = false;
size_t AddWideF16c(const Float16*, float*, size_t) { return 0; }
size_t NarrowF16c(const float*, Float16*, size_t) { return 0; }
#endif

void AddWide(const Float16* in, float* total, size_t count) {
  for (size_t i = kF16c ? AddWideF16c(in, total, count) : 0; i < count; ++i) total[i] += static_cast<float>(in[i]);
}

void Narrow(const float* in, Float16* out, size_t count) {
  for (size_t i = kF16c ? NarrowF16c(in, out, count) : 0; i < count; ++i) out[i] = static_cast<Float16>(in[i]);
}

namespace {

template <typename T, typename Sum>
__attribute__((always_inline)) inline void Sgd(Sum sum, T rate, T* __restrict out, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] -= rate * sum(i);
}

// As TensorFlow's ResourceApplyKerasMomentum.
template <typename T, typename Sum>
__attribute__((always_inline)) inline void Momentum(Sum sum, const Rule<T>& rule, T* __restrict velocity,
                                                    T* __restrict out, size_t count) {
  const T rate = rule.rate, decay = rule.decay1;
  for (size_t i = 0; i < count; ++i) {
    velocity[i] = velocity[i] * decay - rate * sum(i);
    out[i] += velocity[i];
  }
}

// As TensorFlow's ResourceApplyAdam: Kingma and Ba 2015, the efficient form at the end of section 2.
template <typename T, typename Sum>
__attribute__((always_inline)) inline void Adam(Sum sum, const Rule<T>& rule, T* __restrict mean, T* __restrict square,
                                                T* __restrict out, size_t count) {
  const T rate = rule.rate, rest1 = 1 - rule.decay1, rest2 = 1 - rule.decay2, epsilon = rule.epsilon;
  for (size_t i = 0; i < count; ++i) {
    const T gradient = sum(i);
    mean[i] += (gradient - mean[i]) * rest1;
    square[i] += (gradient * gradient - square[i]) * rest2;
    out[i] -= mean[i] * rate / (std::sqrt(square[i]) + epsilon);
  }
}

template <typename T, typename Sum>
__attribute__((always_inline)) inline void Step(const Rule<T>& rule, Sum sum, const Segment<T>& piece) {
  switch (rule.kind) {
    case Rule<T>::kSgd: return Sgd(sum, rule.rate, piece.out, piece.count);
    case Rule<T>::kMomentum: return Momentum(sum, rule, piece.first, piece.out, piece.count);
    case Rule<T>::kAdam: return Adam(sum, rule, piece.first, piece.second, piece.out, piece.count);
  }
}

template <typename T>
struct One {
  const T* sums;
  __attribute__((always_inline)) T operator()(size_t i) const { return sums[i]; }
};

template <typename T>
struct Two {
  const T *a, *b;
  __attribute__((always_inline)) T operator()(size_t i) const { return a[i] + b[i]; }
};

}  // namespace

HARNESS_VECTORISED void Descend(const Rule<float>& rule, const float* sums, const Segment<float>& piece) {
  Step(rule, One<float>{sums}, piece);
}

HARNESS_VECTORISED void Descend(const Rule<double>& rule, const double* sums, const Segment<double>& piece) {
  Step(rule, One<double>{sums}, piece);
}

HARNESS_VECTORISED void AddAndDescend(const Rule<float>& rule, const float* a, const float* b,
                                      const Segment<float>& piece) {
  Step(rule, Two<float>{a, b}, piece);
}

HARNESS_VECTORISED void AddAndDescend(const Rule<double>& rule, const double* a, const double* b,
                                      const Segment<double>& piece) {
  Step(rule, Two<double>{a, b}, piece);
}

}  // namespace harness

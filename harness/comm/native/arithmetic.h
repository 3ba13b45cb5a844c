// Sums and updates of arrays, and how to walk over the parts of a call's tensors.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "group.h"

namespace harness {

constexpr size_t kBlock = 16 * 1024;  // bytes of sums that stay in the first cache until they are applied

void Add(const float* a, const float* b, float* sum, size_t count);
void Add(const double* a, const double* b, double* sum, size_t count);
void SubtractScaled(const float* sum, float rate, float* out, size_t count);
void SubtractScaled(const double* sum, double rate, double* out, size_t count);

// In float32, rounded once.
template <typename T>
void AddSixteen(const std::vector<const T*>& values, T* sum, size_t count) {
  float total[kBlock / sizeof(float)];
  for (size_t begin = 0; begin < count; begin += kBlock / sizeof(float)) {
    const size_t part = std::min(kBlock / sizeof(float), count - begin);
    for (size_t i = 0; i < part; ++i) total[i] = static_cast<float>(values[0][begin + i]);
    for (size_t rank = 1; rank < values.size(); ++rank) {
      for (size_t i = 0; i < part; ++i) total[i] += static_cast<float>(values[rank][begin + i]);
    }
    for (size_t i = 0; i < part; ++i) sum[begin + i] = static_cast<T>(total[i]);
  }
}

template <typename T>
void Scale(const T* in, T* out, size_t count, T scale) {
  if (scale == T(1)) {
    if (in != out) std::memcpy(out, in, count * sizeof(T));
    return;
  }
  for (size_t i = 0; i < count; ++i) out[i] = in[i] * scale;
}

template <typename T>
size_t Elements(const std::vector<Segment<T>>& segments) {
  size_t elements = 0;
  for (const auto& segment : segments) elements += segment.count;
  return elements;
}

// Calls work(piece, offset) for the parts of the segments that lie in `range`; offset counts from the first segment.
template <typename T, typename Work>
void ForEachPiece(const std::vector<Segment<T>>& segments, Range range, Work work) {
  size_t offset = 0;
  for (const auto& segment : segments) {
    const size_t begin = std::max(offset, range.begin), end = std::min(offset + segment.count, range.end);
    if (begin < end) work(Segment<T>{segment.in + (begin - offset), segment.out + (begin - offset), end - begin}, begin);
    offset += segment.count;
  }
}

}  // namespace harness

// Sums of arrays, updates of weights, and how to walk over the parts of a call's tensors.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "group.h"
#include "wire.h"

namespace harness {

constexpr size_t kBlock = 16 * 1024;  // bytes of sums that stay in the first cache until they are applied
constexpr size_t kSampled = 16;  // blocks to one whose step is timed apart from its sums

void Add(const float* a, const float* b, float* sum, size_t count);
void Add(const double* a, const double* b, double* sum, size_t count);
void ShiftAndScale(const uint8_t* in, const float* shift, const float* factor, float* out, size_t count);

// Makes a step of the rule on the piece's weights (`out`) and the optimizer's own values, by the sums of gradients.
void Descend(const Rule<float>& rule, const float* sums, const Segment<float>& piece);
void Descend(const Rule<double>& rule, const double* sums, const Segment<double>& piece);

// As Descend, by the sums of rank 0's and rank 1's gradients, in one pass: blocks of 8 or 16 kB that are added up and then
// applied took 5 to 33 % longer (180 kB to 2.46 MB, all rules, both kinds of stores).
void AddAndDescend(const Rule<float>& rule, const float* a, const float* b, const Segment<float>& piece);
void AddAndDescend(const Rule<double>& rule, const double* a, const double* b, const Segment<double>& piece);

// Adds 16-bit floats to float32 ones, and rounds these to the nearest 16-bit float, ties to even.
void AddWide(const Float16* in, float* total, size_t count);
void AddWide(const BFloat16* in, float* total, size_t count);
void Narrow(const float* in, Float16* out, size_t count);
void Narrow(const float* in, BFloat16* out, size_t count);

// In float32, rounded once.
template <typename T>
void AddSixteen(const std::vector<const T*>& values, T* sum, size_t count) {
  float total[kBlock / sizeof(float)];
  for (size_t begin = 0; begin < count; begin += kBlock / sizeof(float)) {
    const size_t part = std::min(kBlock / sizeof(float), count - begin);
    std::fill(total, total + part, -0.0f);  // what any number, -0 too, stays itself with
    for (const T* one : values) AddWide(one + begin, total, part);
    Narrow(total, sum + begin, part);
  }
}

// Copies bytes past the caches, for another core to read; they are there once this has returned.
void Stream(const void* in, void* out, size_t bytes);

template <typename T>
void Scale(const T* in, T* out, size_t count, T scale, bool stream = false) {
  if (scale == T(1)) {
    if (stream) return Stream(in, out, count * sizeof(T));
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

// The `count` elements of a segment from `begin` on.
template <typename T>
Segment<T> Part(const Segment<T>& segment, size_t begin, size_t count) {
  return {segment.in + begin, segment.out + begin, count, segment.first ? segment.first + begin : nullptr,
          segment.second ? segment.second + begin : nullptr};
}

// Calls work(piece, offset) for the parts of the segments that lie in `range`; offset counts from the first segment.
template <typename T, typename Work>
void ForEachPiece(const std::vector<Segment<T>>& segments, Range range, Work work) {
  size_t offset = 0;
  for (const auto& segment : segments) {
    const size_t begin = std::max(offset, range.begin), end = std::min(offset + segment.count, range.end);
    if (begin < end) work(Part(segment, begin - offset, end - begin), begin);
    offset += segment.count;
  }
}

}  // namespace harness

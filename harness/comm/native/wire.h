// What MPI must know of each element type. It has no 16-bit floats: they travel as 2-byte integers and are added by
// an operation of ours, in float, rounded after every addition.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "Eigen/Core"

namespace harness {

using Float16 = Eigen::half;
using BFloat16 = Eigen::bfloat16;

template <typename T>
constexpr bool kSixteen = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;

template <typename T>
void AddSixteen(const T* a, const T* b, T* sum, size_t count) {
  for (size_t i = 0; i < count; ++i) sum[i] = static_cast<T>(static_cast<float>(a[i]) + static_cast<float>(b[i]));
}

template <typename T>
MPI_Datatype Datatype() {
  if constexpr (kSixteen<T>) {
    return MPI_UINT16_T;
  } else if constexpr (std::is_same_v<T, float>) {
    return MPI_FLOAT;
  } else {
    static_assert(std::is_same_v<T, double>);
    return MPI_DOUBLE;
  }
}

template <typename T>
void AddForMpi(void* in, void* sum, int* count, MPI_Datatype*) {
  T* total = static_cast<T*>(sum);
  AddSixteen(static_cast<const T*>(in), total, total, *count);
}

// The operation that sums elements of type T.
template <typename T>
MPI_Op Summation() {
  if constexpr (kSixteen<T>) {
    static const MPI_Op operation = [] {
      MPI_Op made = MPI_OP_NULL;
      MPI_Op_create(&AddForMpi<T>, 1, &made);
      return made;
    }();
    return operation;
  } else {
    return MPI_SUM;
  }
}

}  // namespace harness

// What MPI must know of each element type. It has no 16-bit floats: they travel as 2-byte integers, which it cannot add.
#pragma once

#include <mpi.h>

#include <type_traits>

#include "Eigen/Core"

namespace harness {

using Float16 = Eigen::half;
using BFloat16 = Eigen::bfloat16;

template <typename T>
constexpr bool kSixteen = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;

template <typename T>
MPI_Datatype Datatype() {
  if (kSixteen<T>) return MPI_UINT16_T;
  return std::is_same_v<T, float> ? MPI_FLOAT : MPI_DOUBLE;
}

}  // namespace harness

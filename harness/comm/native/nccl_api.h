// What is used of NCCL, which is loaded at run time: nothing of it is needed to compile. Names, numbers and layouts are
// those of nccl.h, the same in all of NCCL 2 from 2.11 on.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace harness {

struct NcclComm;     // ncclComm*
using NcclResult = int;
using NcclType = int;
using NcclOperation = int;

constexpr NcclResult kNcclSuccess = 0;
constexpr NcclResult kNcclInProgress = 7;
constexpr NcclType kNcclFloat16 = 6, kNcclFloat32 = 7, kNcclFloat64 = 8, kNcclBfloat16 = 9;
constexpr NcclOperation kNcclSum = 0;
constexpr int kNcclHostImmediate = 1;  // a scalar that is read inside the call

struct NcclId {
  char bytes[128];
};

// NCCL's functions. `text` is what a result means.
struct NcclApi {
  NcclResult (*version)(int*) = nullptr;
  NcclResult (*unique_id)(NcclId*) = nullptr;
  NcclResult (*open)(NcclComm**, int ranks, NcclId, int rank) = nullptr;
  NcclResult (*abort)(NcclComm*) = nullptr;
  NcclResult (*async_error)(NcclComm*, NcclResult*) = nullptr;
  NcclResult (*group_start)() = nullptr;
  NcclResult (*group_end)() = nullptr;
  NcclResult (*allreduce)(const void*, void*, size_t, NcclType, NcclOperation, NcclComm*, void* stream) = nullptr;
  NcclResult (*scaled_sum)(NcclOperation*, void* scale, NcclType, int residence, NcclComm*) = nullptr;
  const char* (*text)(NcclResult) = nullptr;
};

// Loads NCCL, once in a process: the library at `path`, or where that is empty the one that the system finds.
absl::Status LoadNccl(const char* path);

// Returns NCCL's functions, null where it was not loaded.
const NcclApi* Nccl();

// Returns `result` as a status: kInternal and `what` with NCCL's own words.
absl::Status NcclStatus(NcclResult result, absl::string_view what);

}  // namespace harness

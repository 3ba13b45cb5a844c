// A communicator of NCCL, and the thread that ends its calls when a rank is lost.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "nccl_api.h"

namespace harness {

// One tensor of a grouped call, in the GPU's memory; `in` and `out` may be the same.
struct NcclSegment {
  const void* in;
  void* out;
  size_t count;
};

// The ranks' values are multiplied by `scale`, each rank's own, and added; `bytes` is the scale as a number of `type`.
struct NcclSum {
  NcclType type;
  double scale;
  void* bytes;
};

class NcclGroup {
 public:
  // Opens a communicator on the GPU of this thread's context, on all ranks together.
  static absl::Status Open(int ranks, int rank, const NcclId& id, std::shared_ptr<NcclGroup>* group);
  // Ends the communicator without waiting for other ranks, which may be gone.
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  // Puts the sums over all ranks on the GPU's `stream`, in one launch, and returns before they are made. kAborted says
  // that a rank is lost.
  absl::Status Sum(const std::vector<NcclSegment>& segments, const NcclSum& sum, void* stream);

  // Watches no longer and leaves the communicator as it is: for the end of the process, when others may still read from
  // this rank's memory.
  void Leave();

  int rank() const { return rank_; }

 private:
  NcclGroup(NcclComm* comm, int rank);
  absl::Status Lost() const;
  absl::Status FindOperation(const NcclSum& sum, NcclOperation* operation);
  void Watch();
  void Abort();

  NcclComm* comm_;
  const int rank_;
  std::timed_mutex calls_;  // held while a call is put on the stream
  std::map<std::pair<NcclType, double>, NcclOperation> scaled_;
  std::atomic<NcclResult> loss_{kNcclSuccess};  // what NCCL said when it lost a rank
  std::atomic<bool> ending_{false};
  std::thread watching_;
};

// Groups by their numbers.
std::shared_ptr<NcclGroup> FindNcclGroup(int64_t number);
void KeepNcclGroup(int64_t number, std::shared_ptr<NcclGroup> group);
void LeaveNcclGroups();

}  // namespace harness

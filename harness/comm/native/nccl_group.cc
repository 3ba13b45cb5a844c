// Sums by NCCL, and how they end when a rank is lost.

#include "nccl_group.h"

#include <chrono>
#include <mutex>

#include "absl/strings/str_cat.h"

namespace harness {
namespace {

constexpr std::chrono::milliseconds kLook{100};   // between looks at whether NCCL has lost a rank
constexpr std::chrono::seconds kStuck{1};  // after which a call is held to wait for the lost rank: an abort ends it too

std::mutex groups_mutex;
std::map<int64_t, std::shared_ptr<NcclGroup>> groups;

}  // namespace

absl::Status NcclGroup::Open(int ranks, int rank, const NcclId& id, std::shared_ptr<NcclGroup>* group) {
  NcclComm* comm = nullptr;
  const absl::Status opened = NcclStatus(Nccl()->open(&comm, ranks, id, rank), "no communicator");
  if (opened.ok()) group->reset(new NcclGroup(comm, rank));
  return opened;
}

NcclGroup::NcclGroup(NcclComm* comm, int rank) : comm_(comm), rank_(rank), watching_([this] { Watch(); }) {}

NcclGroup::~NcclGroup() {
  ending_.store(true);
  if (watching_.joinable()) watching_.join();
  if (comm_ != nullptr) Nccl()->abort(comm_);
}

void NcclGroup::Leave() {
  ending_.store(true);
  watching_.join();
  comm_ = nullptr;
}

absl::Status NcclGroup::Lost() const {
  const NcclResult loss = loss_.load();
  if (loss == kNcclSuccess) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("lost a rank: NCCL says '", Nccl()->text(loss), "'"));
}

absl::Status NcclGroup::Sum(const std::vector<NcclSegment>& segments, const NcclSum& sum, void* stream) {
  std::lock_guard<std::timed_mutex> lock(calls_);
  if (!Lost().ok()) return Lost();
  if (comm_ == nullptr) return absl::FailedPreconditionError("the group is closed");
  NcclOperation operation = kNcclSum;
  const absl::Status ready = FindOperation(sum, &operation);
  if (!ready.ok()) return ready;
  NcclResult result = Nccl()->group_start();
  for (const NcclSegment& segment : segments) {
    if (result != kNcclSuccess) break;
    result = Nccl()->allreduce(segment.in, segment.out, segment.count, sum.type, operation, comm_, stream);
  }
  const NcclResult ended = Nccl()->group_end();
  if (!Lost().ok()) return Lost();
  return NcclStatus(result == kNcclSuccess ? ended : result, "no sum");
}

// NCCL multiplies each rank's own values as it reads them. A plain sum may take ways that a scaled one may not.
absl::Status NcclGroup::FindOperation(const NcclSum& sum, NcclOperation* operation) {
  if (sum.scale == 1.0) return absl::OkStatus();
  const auto key = std::make_pair(sum.type, sum.scale);
  const auto made = scaled_.find(key);
  if (made != scaled_.end()) {
    *operation = made->second;
    return absl::OkStatus();
  }
  const NcclResult result = Nccl()->scaled_sum(operation, sum.bytes, sum.type, kNcclHostImmediate, comm_);
  if (result == kNcclSuccess) scaled_[key] = *operation;
  return NcclStatus(result, "no scaled sum");
}

void NcclGroup::Watch() {
  while (!ending_.load()) {
    std::this_thread::sleep_for(kLook);
    NcclResult error = kNcclSuccess;
    if (Nccl()->async_error(comm_, &error) != kNcclSuccess) continue;
    if (error == kNcclSuccess || error == kNcclInProgress) continue;
    loss_.store(error);
    Abort();
    return;
  }
}

// Has what is on the stream come to an end, with any values: the next call says why.
void NcclGroup::Abort() {
  std::unique_lock<std::timed_mutex> lock(calls_, kStuck);
  Nccl()->abort(comm_);
  comm_ = nullptr;
}

std::shared_ptr<NcclGroup> FindNcclGroup(int64_t number) {
  std::lock_guard<std::mutex> lock(groups_mutex);
  const auto place = groups.find(number);
  return place == groups.end() ? nullptr : place->second;
}

void KeepNcclGroup(int64_t number, std::shared_ptr<NcclGroup> group) {
  std::lock_guard<std::mutex> lock(groups_mutex);
  groups[number] = std::move(group);
}

void LeaveNcclGroups() {
  std::map<int64_t, std::shared_ptr<NcclGroup>> left;
  {
    std::lock_guard<std::mutex> lock(groups_mutex);
    left.swap(groups);
  }
  for (const auto& [number, group] : left) group->Leave();
}

}  // namespace harness

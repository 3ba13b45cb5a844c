// What Python calls through ctypes: groups by their numbers, their logs, and the sum without TensorFlow around it.

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "group.h"

namespace harness {
namespace {

std::mutex groups_mutex;
std::map<int64_t, std::unique_ptr<Group>> groups;

// The last rank that this process lost.
std::atomic<int> loss_reason{0}, lost_rank{-1};

#if defined(MPI_ERR_PROC_FAILED)
constexpr int kFailures[] = {MPI_ERR_PROC_FAILED, MPI_ERR_PROC_FAILED_PENDING, MPI_ERR_REVOKED};
#elif defined(MPIX_ERR_PROC_FAILED)
constexpr int kFailures[] = {MPIX_ERR_PROC_FAILED, MPIX_ERR_PROC_FAILED_PENDING, MPIX_ERR_REVOKED};
#else
constexpr int kFailures[] = {-1};  // a library without fault tolerance
#endif

std::string Sentence(const MissingRank& missing) {
  switch (missing.reason) {
    case Loss::kGone:
      return absl::StrCat("lost rank ", missing.rank, ": its process is gone");
    case Loss::kLate:
      return absl::StrCat("lost rank ", missing.rank, ": it lives and has not come for ", missing.waited, " s");
    default:
      return absl::StrCat("lost a rank: rank ", missing.rank, " has given up");
  }
}

void NoteLoss(Loss reason, int rank) {
  lost_rank.store(rank);
  loss_reason.store(static_cast<int>(reason));
}

// Writes what went wrong to `failure`, of `room` bytes, and returns its code, 0 for nothing.
int Report(const absl::Status& status, char* failure, uint64_t room) {
  std::snprintf(failure, room, "%s", std::string(status.message()).c_str());
  return static_cast<int>(status.code());
}

}  // namespace

Group* FindGroup(int64_t number) {
  std::lock_guard<std::mutex> lock(groups_mutex);
  const auto found = groups.find(number);
  return found == groups.end() ? nullptr : found->second.get();
}

absl::Status Lost(const MissingRank& missing) {
  NoteLoss(missing.reason, missing.rank);
  return absl::AbortedError(Sentence(missing));
}

absl::Status MpiFailure(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0, kind = 0;
  MPI_Error_string(code, text, &length);
  MPI_Error_class(code, &kind);
  const std::string sentence(text, length);
  if (std::find(std::begin(kFailures), std::end(kFailures), kind) == std::end(kFailures)) {
    return absl::InternalError(sentence);
  }
  NoteLoss(Loss::kMpi, -1);
  return absl::AbortedError(sentence);
}

void Require(int code) {
  if (code != MPI_SUCCESS) throw StatusError(MpiFailure(code));
}

}  // namespace harness

extern "C" {

// Opens group `number` on the communicator with this Fortran handle. Writes the algorithm that it takes, a
// harness::Algorithm, and whether shared memory was too short for another. Returns 0, or the absl::StatusCode of what
// went wrong, with a sentence in `failure`, of `room` bytes.
int harness_open(int64_t number, int handle, uint64_t bytes, int algorithm, int guard, int patient, int* taken,
                 int* short_of_memory, char* failure, uint64_t room) {
  try {
    auto group = std::make_unique<harness::Group>(MPI_Comm_f2c(handle), bytes, static_cast<harness::Algorithm>(algorithm),
                                                  guard != 0, patient != 0);
    *taken = static_cast<int>(group->algorithm());
    *short_of_memory = group->short_of_memory();
    std::lock_guard<std::mutex> lock(harness::groups_mutex);
    harness::groups[number] = std::move(group);
    return 0;
  } catch (const harness::StatusError& error) {
    return harness::Report(error.status, failure, room);
  } catch (const std::exception& error) {
    return harness::Report(absl::InternalError(error.what()), failure, room);
  }
}

// Returns why this process last lost a rank since `harness_outlive`, a harness::Loss, and writes the rank's number in its
// group, -1 where it is not known.
int harness_loss(int* rank) {
  *rank = harness::lost_rank.load();
  return harness::loss_reason.load();
}

void harness_close(int64_t number) {
  std::lock_guard<std::mutex> lock(harness::groups_mutex);
  harness::groups.erase(number);
}

void harness_close_all() {
  std::lock_guard<std::mutex> lock(harness::groups_mutex);
  harness::groups.clear();
}

// Has every call of every group come back with a failure, on all ranks.
void harness_give_up() {
  std::lock_guard<std::mutex> lock(harness::groups_mutex);
  for (const auto& [number, group] : harness::groups) group->GiveUp();
}

// Says that this process outlives others, and after how many seconds one that lives and does not come is given up in
// shared memory, 0 for never.
void harness_outlive(double patience) {
  harness::NoteLoss(harness::Loss::kNone, -1);
  harness::patience.store(patience);
  harness::outlives.store(true);
}

// Number of calls logged since they were last taken.
uint64_t harness_calls(int64_t number) {
  harness::Group* group = harness::FindGroup(number);
  return group ? group->times().size() / 2 : 0;
}

// Copies entry and exit of every logged call to `times` (2 per call) and starts anew.
void harness_take(int64_t number, double* times) {
  harness::Group* group = harness::FindGroup(number);
  if (!group) return;
  std::copy(group->times().begin(), group->times().end(), times);
  group->times().clear();
}

// Writes number, bytes, entry and exit of the last calls (at most 32) to `calls` and returns how many. Any thread may
// ask, also while another closes the group.
uint64_t harness_recent(int64_t number, double* calls) {
  std::lock_guard<std::mutex> lock(harness::groups_mutex);
  const auto found = harness::groups.find(number);
  return found == harness::groups.end() ? 0 : found->second->Recent(calls);
}

// Writes what `Group::Ping` finds to `nanoseconds`. Returns as `harness_open`.
int harness_ping(int64_t number, uint64_t rounds, double* nanoseconds, char* failure, uint64_t room) {
  try {
    *nanoseconds = harness::FindGroup(number)->Ping(rounds);
    return 0;
  } catch (const harness::StatusError& error) {
    return harness::Report(error.status, failure, room);
  }
}

// Sums `tensors` arrays of floats over all ranks of group `number`, in place: the first of counts[0] floats, and so on,
// end to end from `values`. Returns as `harness_open`.
int harness_sum(int64_t number, float* values, const uint64_t* counts, uint64_t tensors, char* failure, uint64_t room) {
  static const harness::Label label("timed sum");
  harness::Group* group = harness::FindGroup(number);
  if (!group) return harness::Report(absl::InvalidArgumentError("the group is not open"), failure, room);
  std::vector<harness::Segment<float>> segments;
  for (uint64_t i = 0; i < tensors; ++i) {
    segments.push_back({values, values, static_cast<size_t>(counts[i])});
    values += counts[i];
  }
  return harness::Report(group->Sum(segments, 1.0f, label), failure, room);
}

}  // extern "C"

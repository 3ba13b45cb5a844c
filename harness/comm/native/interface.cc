// What Python calls through ctypes: groups by their numbers, their logs, and the sum without TensorFlow around it.

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>

#include "group.h"

namespace harness {
namespace {

std::mutex groups_mutex;
std::map<int64_t, std::unique_ptr<Group>> groups;

}  // namespace

Group* FindGroup(int64_t number) {
  std::lock_guard<std::mutex> lock(groups_mutex);
  const auto found = groups.find(number);
  return found == groups.end() ? nullptr : found->second.get();
}

std::string Describe(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, length);
}

void Require(int code) {
  if (code != MPI_SUCCESS) throw std::runtime_error(Describe(code));
}

}  // namespace harness

extern "C" {

// Opens group `number` on the communicator with this Fortran handle. Returns the way it takes, a harness::Way, plus 8
// where shared memory was too short for another; or -1 with what went wrong in `failure`, of `room` bytes.
int harness_open(int64_t number, int handle, uint64_t bytes, int way, int guard, int patient, char* failure,
                 uint64_t room) {
  try {
    auto group = std::make_unique<harness::Group>(MPI_Comm_f2c(handle), bytes, static_cast<harness::Way>(way), guard != 0,
                                                  patient != 0);
    const int taken = static_cast<int>(group->way()) + (group->short_of_memory() ? 8 : 0);
    std::lock_guard<std::mutex> lock(harness::groups_mutex);
    harness::groups[number] = std::move(group);
    return taken;
  } catch (const std::exception& error) {
    std::snprintf(failure, room, "%s", error.what());
    return -1;
  }
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

// Returns what `Group::Ping` finds, or -1 with what went wrong in `failure`, of `room` bytes.
double harness_ping(int64_t number, uint64_t rounds, char* failure, uint64_t room) {
  try {
    return harness::FindGroup(number)->Ping(rounds);
  } catch (const std::exception& error) {
    std::snprintf(failure, room, "%s", error.what());
    return -1;
  }
}

// Sums `tensors` arrays of floats over all ranks of group `number`, in place: the first of counts[0] floats, and so on,
// end to end from `values`. Returns 0, or 1 with what went wrong in `failure`, of `room` bytes.
int harness_sum(int64_t number, float* values, const uint64_t* counts, uint64_t tensors, char* failure, uint64_t room) {
  static const harness::Label label("timed sum");
  harness::Group* group = harness::FindGroup(number);
  if (!group) return 1;
  std::vector<harness::Segment<float>> segments;
  for (uint64_t i = 0; i < tensors; ++i) {
    segments.push_back({values, values, static_cast<size_t>(counts[i])});
    values += counts[i];
  }
  return std::snprintf(failure, room, "%s", group->Sum(segments, 1.0f, label).c_str()) > 0;
}

}  // extern "C"

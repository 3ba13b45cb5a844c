#include "group.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <map>
#include <memory>
#include <mutex>

#include "wire.h"

#if defined(__x86_64__)
// The library may be shared by hosts with different processors: the widest vectors are chosen at run time.
#define HARNESS_VECTORISED __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define HARNESS_VECTORISED
#endif

namespace harness {
namespace {

constexpr size_t kSmall = 16 * 1024;  // bytes below which a tensor is packed with its like

std::mutex groups_mutex;
std::map<int64_t, std::unique_ptr<Group>> groups;

HARNESS_VECTORISED void Add(const float* a, const float* b, float* sum, size_t count) {
  for (size_t i = 0; i < count; ++i) sum[i] = a[i] + b[i];
}

HARNESS_VECTORISED void Add(const double* a, const double* b, double* sum, size_t count) {
  for (size_t i = 0; i < count; ++i) sum[i] = a[i] + b[i];
}

template <typename T, typename = std::enable_if_t<kSixteen<T>>>
void Add(const T* a, const T* b, T* sum, size_t count) {
  AddSixteen(a, b, sum, count);
}

HARNESS_VECTORISED void SubtractScaled(const float* sum, float rate, float* out, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] -= rate * sum[i];
}

HARNESS_VECTORISED void SubtractScaled(const double* sum, double rate, double* out, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] -= rate * sum[i];
}

HARNESS_VECTORISED void SubtractScaledSum(const float* a, const float* b, float rate, float* out, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] -= rate * (a[i] + b[i]);
}

HARNESS_VECTORISED void SubtractScaledSum(const double* a, const double* b, double rate, double* out, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] -= rate * (a[i] + b[i]);
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

template <typename T>
void Scale(const T* in, T* out, size_t count, T scale) {
  if (scale == T(1)) {
    if (in != out) std::memcpy(out, in, count * sizeof(T));
    return;
  }
  for (size_t i = 0; i < count; ++i) out[i] = in[i] * scale;
}

std::string Describe(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, length);
}

}  // namespace

double Now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + 1e-9 * time.tv_nsec;
}

Group::Group(MPI_Comm comm, size_t bytes, Way way) : bytes_(RoundUp(bytes, kLine)) {
  MPI_Comm_dup(comm, &comm_);
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
  if (way != Way::kMessages && size_ > 1) OpenSharedMemory(way);
}

Group::~Group() {
  if (memory_ != nullptr) munmap(memory_, here_ * region_);
  int ended = 0;
  MPI_Finalized(&ended);  // groups still open when the process ends are closed after MPI itself
  if (ended) return;
  if (leaders_ != MPI_COMM_NULL) MPI_Comm_free(&leaders_);
  MPI_Comm_free(&comm_);
}

template <typename T>
std::string Group::Sum(const std::vector<Segment<T>>& segments, T scale) {
  const size_t elements = Elements(segments);
  if (size_ == 1) {
    for (const auto& segment : segments) Scale(segment.in, segment.out, segment.count, scale);
    return "";
  }
  if (way_ == Way::kMessages || elements * sizeof(T) > bytes_) return SumByMessages(segments, scale);
  ++call_;
  SumSlices(segments, scale);
  if (way_ == Way::kNodeAware) return SumOverHosts(segments);
  for (int rank = 0; rank < here_; ++rank) {
    ForEachPiece(segments, Slice<T>(rank, elements), [&](const Segment<T>& piece, size_t offset) {
      std::memcpy(piece.out, Values<T>(rank) + offset, piece.count * sizeof(T));
    });
  }
  return "";
}

// The first rank of every host collects the sums of its host's slices and adds up those of all hosts; the others wait
// for it, on every host and also when MPI failed, and copy.
template <typename T>
std::string Group::SumOverHosts(const std::vector<Segment<T>>& segments) {
  const size_t elements = Elements(segments);
  T* total = Values<T>(0);
  int code = MPI_SUCCESS;
  if (place_ == 0) {
    for (int rank = 1; rank < here_; ++rank) {
      const Range slice = Slice<T>(rank, elements);
      std::memcpy(total + slice.begin, Values<T>(rank) + slice.begin, (slice.end - slice.begin) * sizeof(T));
    }
    code = MPI_Allreduce(MPI_IN_PLACE, total, elements, Datatype<T>(), Summation<T>(), leaders_);
    Failure() = code;
    Arrive(2);
  } else {
    Await(0, 2);
    code = Failure();
  }
  if (code != MPI_SUCCESS) return Describe(code);
  ForEachPiece(segments, {0, elements}, [&](const Segment<T>& piece, size_t offset) {
    std::memcpy(piece.out, total + offset, piece.count * sizeof(T));
  });
  return "";
}

// Two ranks read each other's values directly: one wait. More ranks read the sums of slices: two waits, less reading.
template <typename T>
std::string Group::Descend(const std::vector<Segment<T>>& segments, T rate) {
  const size_t elements = Elements(segments);
  if (size_ == 1) {
    for (const auto& segment : segments) SubtractScaled(segment.in, rate, segment.out, segment.count);
    return "";
  }
  if (way_ != Way::kShared || elements * sizeof(T) > bytes_) return DescendBySums(segments, rate);
  ++call_;
  if (here_ > 2) {
    SumSlices(segments, T(1));
    for (int rank = 0; rank < here_; ++rank) {
      ForEachPiece(segments, Slice<T>(rank, elements), [&](const Segment<T>& piece, size_t offset) {
        SubtractScaled(Values<T>(rank) + offset, rate, piece.out, piece.count);
      });
    }
    return "";
  }
  ForEachPiece(segments, {0, elements}, [&](const Segment<T>& piece, size_t offset) {
    std::memcpy(Values<T>(place_) + offset, piece.in, piece.count * sizeof(T));
  });
  Arrive(0);
  AwaitAll(0);
  const T* other = Values<T>(1 - place_);
  ForEachPiece(segments, {0, elements}, [&](const Segment<T>& piece, size_t offset) {
    SubtractScaledSum(piece.in, other + offset, rate, piece.out, piece.count);
  });
  return "";
}

template <typename T>
std::string Group::DescendBySums(const std::vector<Segment<T>>& segments, T rate) {
  sums_.resize(Elements(segments) * sizeof(T));
  T* next = reinterpret_cast<T*>(sums_.data());
  std::vector<Segment<T>> sums;
  for (const auto& segment : segments) {
    sums.push_back({segment.in, next, segment.count});
    next += segment.count;
  }
  const std::string failure = Sum(sums, T(1));
  if (!failure.empty()) return failure;
  for (size_t i = 0; i < segments.size(); ++i) SubtractScaled(sums[i].out, rate, segments[i].out, segments[i].count);
  return "";
}

template <typename T>
Range Group::Slice(int rank, size_t elements) const {
  const size_t slice = RoundUp((elements + here_ - 1) / here_, kLine / sizeof(T));
  const size_t begin = std::min(elements, rank * slice);
  return {begin, std::min(elements, begin + slice)};
}

// Leaves the sums of slice r, one slice per rank, in rank r's buffer, for all ranks to read: every rank writes its
// values of the others' slices where they can read them, waits, adds up its own slice, and waits again. One rank
// adds for all, so that all get the same bits.
template <typename T>
void Group::SumSlices(const std::vector<Segment<T>>& segments, T scale) {
  const size_t elements = Elements(segments);
  T* own = Values<T>(place_);
  if (here_ == 1) {
    ForEachPiece(segments, {0, elements},
                 [&](const Segment<T>& piece, size_t offset) { Scale(piece.in, own + offset, piece.count, scale); });
    return;
  }
  const Range mine = Slice<T>(place_, elements);
  for (const Range part : {Range{0, mine.begin}, Range{mine.end, elements}}) {
    ForEachPiece(segments, part,
                 [&](const Segment<T>& piece, size_t offset) { Scale(piece.in, own + offset, piece.count, scale); });
  }
  Arrive(0);
  AwaitAll(0);
  const T* first = Values<T>(place_ == 0 ? 1 : 0);
  ForEachPiece(segments, mine, [&](const Segment<T>& piece, size_t offset) {
    if (scale == T(1)) {
      Add(piece.in, first + offset, own + offset, piece.count);
    } else {
      Scale(piece.in, own + offset, piece.count, scale);
      Add(own + offset, first + offset, own + offset, piece.count);
    }
  });
  for (int rank = place_ == 0 ? 2 : 1; rank < here_; ++rank) {
    if (rank == place_) continue;
    Add(own + mine.begin, Values<T>(rank) + mine.begin, own + mine.begin, mine.end - mine.begin);
  }
  Arrive(1);
  AwaitAll(1);
}

// Large tensors are summed where they lie; small ones are packed into one message.
template <typename T>
std::string Group::SumByMessages(const std::vector<Segment<T>>& segments, T scale) {
  size_t small = 0;
  for (const auto& segment : segments) {
    if (segment.count * sizeof(T) < kSmall) small += segment.count;
  }
  packed_.resize(small * sizeof(T));
  T* next = reinterpret_cast<T*>(packed_.data());
  for (const auto& segment : segments) {
    const bool pack = segment.count * sizeof(T) < kSmall;
    Scale(segment.in, pack ? next : segment.out, segment.count, scale);
    if (pack) {
      next += segment.count;
      continue;
    }
    const int code = MPI_Allreduce(MPI_IN_PLACE, segment.out, segment.count, Datatype<T>(), Summation<T>(), comm_);
    if (code != MPI_SUCCESS) return Describe(code);
  }
  if (small == 0) return "";
  const int code = MPI_Allreduce(MPI_IN_PLACE, packed_.data(), small, Datatype<T>(), Summation<T>(), comm_);
  if (code != MPI_SUCCESS) return Describe(code);
  next = reinterpret_cast<T*>(packed_.data());
  for (const auto& segment : segments) {
    if (segment.count * sizeof(T) >= kSmall) continue;
    std::memcpy(segment.out, next, segment.count * sizeof(T));
    next += segment.count;
  }
  return "";
}

void Group::Enter(double entry, size_t bytes) {
  const uint64_t number = entered_.load(std::memory_order_relaxed);
  Call& call = recent_[number % kRecent];
  call.entry.store(entry);  // before `exit`: who sees no exit must not see the entry of an older call
  call.exit.store(0);
  call.number.store(number + 1);
  call.bytes.store(bytes);
  entered_.store(number + 1);
}

void Group::Log(double entry, double exit) {
  times_.push_back(entry);
  times_.push_back(exit);
  recent_[(entered_.load(std::memory_order_relaxed) - 1) % kRecent].exit.store(exit);
}

uint64_t Group::Recent(double* out) const {
  const uint64_t entered = entered_.load();
  const uint64_t count = std::min(entered, kRecent);
  for (uint64_t i = entered - count; i < entered; ++i) {
    const Call& call = recent_[i % kRecent];
    *out++ = static_cast<double>(call.number.load());
    *out++ = static_cast<double>(call.bytes.load());
    *out++ = call.entry.load();
    *out++ = call.exit.load();
  }
  return count;
}

template std::string Group::Sum<float>(const std::vector<Segment<float>>&, float);
template std::string Group::Sum<double>(const std::vector<Segment<double>>&, double);
template std::string Group::Sum<Float16>(const std::vector<Segment<Float16>>&, Float16);
template std::string Group::Sum<BFloat16>(const std::vector<Segment<BFloat16>>&, BFloat16);
template std::string Group::Descend<float>(const std::vector<Segment<float>>&, float);
template std::string Group::Descend<double>(const std::vector<Segment<double>>&, double);

Group* FindGroup(int64_t number) {
  std::lock_guard<std::mutex> lock(groups_mutex);
  const auto found = groups.find(number);
  return found == groups.end() ? nullptr : found->second.get();
}

}  // namespace harness

// What Python calls through ctypes.
extern "C" {

// Opens group `number` on the communicator with this Fortran handle; returns the way it takes, a harness::Way.
int harness_open(int64_t number, int handle, uint64_t bytes, int way) {
  auto group = std::make_unique<harness::Group>(MPI_Comm_f2c(handle), bytes, static_cast<harness::Way>(way));
  const harness::Way taken = group->way();
  std::lock_guard<std::mutex> lock(harness::groups_mutex);
  harness::groups[number] = std::move(group);
  return static_cast<int>(taken);
}

void harness_close(int64_t number) {
  std::lock_guard<std::mutex> lock(harness::groups_mutex);
  harness::groups.erase(number);
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

// Writes number, bytes, entry and exit of the last calls (at most 32) to `calls` and returns how many. Any thread may ask.
uint64_t harness_recent(int64_t number, double* calls) {
  harness::Group* group = harness::FindGroup(number);
  return group ? group->Recent(calls) : 0;
}

}  // extern "C"

#include "group.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <stdexcept>
#include <utility>

#include "arithmetic.h"
#include "wire.h"

namespace harness {
namespace {

template <typename T>
constexpr uint64_t kSum = sizeof(T) | (kSixteen<T> ? 16 : 0) | (std::is_same_v<T, BFloat16> ? 32 : 0);

template <typename T>
constexpr uint64_t kUpdate = kSum<T> | 64;

constexpr size_t kLeast = 32 * 1024;  // bytes of a call whose stores are chosen
constexpr uint64_t kTrial = 8;        // calls with either kind of stores
constexpr uint64_t kSettle = 2;       // of them not counted: buffers are used in turns
constexpr uint64_t kEvery = 1024;     // calls from one trial to the next
constexpr double kGain = 0.95;        // of the usual stores' time, below which streaming ones are worth it

double Median(std::vector<double>& values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

}  // namespace

bool StoreChoice::Begin(size_t bytes) {
  large_ = bytes >= kLeast;
  if (!large_) return false;
  place_ = calls_++ % kEvery;
  ticks_ = 0;
  return place_ < 2 * kTrial ? place_ >= kTrial : streams_;
}

void StoreChoice::End(size_t bytes) {
  if (!large_ || place_ >= 2 * kTrial) return;
  if (place_ % kTrial >= kSettle) costs_[place_ / kTrial].push_back(static_cast<double>(ticks_) / bytes);
  if (place_ != 2 * kTrial - 1 || costs_[0].empty() || costs_[1].empty()) return;
  streams_ = Median(costs_[1]) < kGain * Median(costs_[0]);
  for (auto& costs : costs_) costs.clear();
}

double Now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + 1e-9 * time.tv_nsec - Paused();
}

Group::Group(MPI_Comm comm, size_t bytes, Algorithm algorithm, bool guard, bool patient)
    : guard_(guard), patient_(patient), bytes_(RoundUp(bytes, kLine)) {
  try {
    Require(MPI_Comm_dup(comm, &comm_));
    Require(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
    Require(MPI_Comm_rank(comm_, &rank_));
    Require(MPI_Comm_size(comm_, &size_));
    if (algorithm != Algorithm::kMessages && size_ > 1) OpenSharedMemory(algorithm);
  } catch (...) {  // a rank has died: others may wait for this one in what it does not go on with
    GiveUp();
    Close();
    throw;
  }
}

void Group::Close() {
  LeaveMemory();
  int ended = 0;
  MPI_Finalized(&ended);  // groups still open when the process ends are closed after MPI itself
  for (MPI_Comm* comm : {&peers_, &host_, &comm_}) {
    if (!ended && *comm != MPI_COMM_NULL) MPI_Comm_free(comm);
  }
}

void Group::GiveUp() {
  if (memory_ != nullptr) PeerOf(place_).gave_up.store(1, std::memory_order_release);
  // Not in every library: https://fault-tolerance.org, MPI 5.
  static const auto revoke = reinterpret_cast<int (*)(MPI_Comm)>(dlsym(RTLD_DEFAULT, "MPIX_Comm_revoke"));
  if (revoke == nullptr || size_ == 1) return;
  for (MPI_Comm comm : {comm_, host_, peers_}) {
    if (comm != MPI_COMM_NULL) revoke(comm);
  }
}

double Group::Ping(size_t rounds) {
  std::vector<double> ticks(rounds);
  const double begin = Now();
  const uint64_t first = Ticks();
  uint64_t last = first;
  for (double& round : ticks) {
    ++call_;
    if (place_ == 0) Arrive(0);
    const MissingRank missing = Await((place_ + here_ - 1) % here_, 0);
    if (!missing.none()) {
      GiveUp();
      throw StatusError(Lost(missing));
    }
    if (place_ != 0) Arrive(0);
    const uint64_t now = Ticks();
    round = static_cast<double>(now - std::exchange(last, now));
  }
  return 1e9 * (Now() - begin) / (last - first) * Median(ticks) * 2 / here_;
}

template <typename T>
absl::Status Group::Sum(const std::vector<Segment<T>>& segments, T scale, const Label& label) {
  return Total(segments, scale, label, kSum<T>);
}

template <typename T>
absl::Status Group::Total(const std::vector<Segment<T>>& segments, T scale, const Label& label, uint64_t kind) {
  const size_t elements = Elements(segments);
  if (size_ == 1) {
    for (const auto& segment : segments) Scale(segment.in, segment.out, segment.count, scale);
    return absl::OkStatus();
  }
  ++call_;
  const Signature signature{elements, label.hash, kind};
  if (memory_ != nullptr) Publish(signature, label);
  if (algorithm_ == Algorithm::kMessages || elements * sizeof(T) > bytes_) {
    absl::Status met = memory_ != nullptr ? Meet(label) : absl::OkStatus();
    if (met.ok() && guard_) met = Compare(signature, label, comm_);
    return met.ok() ? SumByMessages(segments, scale) : met;
  }
  const absl::Status summed = SumSlices(segments, scale, signature, label);
  if (!summed.ok()) return summed;
  for (int turn = 0; turn < here_; ++turn) {
    const int rank = (place_ + turn) % here_;  // its own first: not all read one rank's memory at a time
    ForEachPiece(segments, Slice<T>(rank, elements), [&](const Segment<T>& piece, size_t offset) {
      std::memcpy(piece.out, Values<T>(rank) + offset, piece.count * sizeof(T));
    });
  }
  return absl::OkStatus();
}

// Two ranks read each other's values directly: one wait. More ranks read the sums of slices: two waits, less reading.
template <typename T>
absl::Status Group::Update(const std::vector<Segment<T>>& segments, const Rule<T>& rule, const Label& label) {
  const size_t elements = Elements(segments);
  if (size_ == 1) {
    const double begin = Now();
    for (const auto& segment : segments) Descend(rule, segment.in, segment);
    update_s_ += Now() - begin;
    return absl::OkStatus();
  }
  if (algorithm_ != Algorithm::kShared || elements * sizeof(T) > bytes_) return UpdateBySums(segments, rule, label);
  ++call_;
  const Signature signature{elements, label.hash, kUpdate<T>};
  Publish(signature, label);
  if (here_ > 2) {
    const absl::Status summed = SumSlices(segments, T(1), signature, label);
    if (!summed.ok()) return summed;
    for (int turn = 0; turn < here_; ++turn) {
      const int rank = (place_ + turn) % here_;
      UpdateInOnePass(
          segments, Slice<T>(rank, elements), rule,
          [&](const Segment<T>& piece, size_t offset, T* sums) {
            std::memcpy(sums, Values<T>(rank) + offset, piece.count * sizeof(T));
          },
          [&](const Segment<T>& piece, size_t offset) { Descend(rule, Values<T>(rank) + offset, piece); });
    }
    return absl::OkStatus();
  }
  const bool stream = stores_.Begin(elements * sizeof(T));
  stores_.Time([&] {
    ForEachPiece(segments, {0, elements}, [&](const Segment<T>& piece, size_t offset) {
      Scale(piece.in, Values<T>(place_) + offset, piece.count, T(1), stream);
    });
  });
  const absl::Status met = Meet(label);
  if (!met.ok()) return met;
  // Rank 0's first on both: of two values that are no numbers a processor's sum is the first.
  const auto pair = [&](const Segment<T>& piece, size_t offset) {
    const T* other = Values<T>(1 - place_) + offset;
    return place_ == 0 ? std::pair(piece.in, other) : std::pair(other, piece.in);
  };
  stores_.Time([&] {
    UpdateInOnePass(
        segments, {0, elements}, rule,
        [&](const Segment<T>& piece, size_t offset, T* sums) {
          const auto [zero, one] = pair(piece, offset);
          Add(zero, one, sums, piece.count);
        },
        [&](const Segment<T>& piece, size_t offset) {
          const auto [zero, one] = pair(piece, offset);
          AddAndDescend(rule, zero, one, piece);
        });
  });
  stores_.End(elements * sizeof(T));
  return absl::OkStatus();
}

// Steps from the sums where they are, by step(piece, offset): one pass takes little more than half the time of two with
// 2.5 MB. What the updates take, which is none of the exchange, is known from the first block of every kSampled, whose
// sums come first, by gather(piece, offset, sums), and is counted for all: at most what the pass takes, for a rank that
// loses its core in such a block.
template <typename T, typename Gather, typename Step>
void Group::UpdateInOnePass(const std::vector<Segment<T>>& segments, Range range, const Rule<T>& rule, Gather gather,
                            Step step) {
  constexpr size_t kNumbers = kBlock / sizeof(T);
  alignas(kLine) T sums[kNumbers];
  Parts updates;
  size_t sampled = 0;
  const double began = Now();
  ForEachPiece(segments, range, [&](const Segment<T>& piece, size_t offset) {
    for (size_t begin = 0; begin < piece.count; begin += kSampled * kNumbers) {
      const size_t count = std::min(kSampled * kNumbers, piece.count - begin), timed = std::min(kNumbers, count);
      const Segment<T> block = Part(piece, begin, timed);
      gather(block, offset + begin, sums);
      updates.Time([&] { Descend(rule, sums, block); });
      step(Part(piece, begin + timed, count - timed), offset + begin + timed);
      sampled += timed;
    }
  });
  const size_t elements = range.end - range.begin;
  if (sampled > 0) update_s_ += std::min(updates.Seconds() * elements / sampled, Now() - began);
}

template <typename T>
absl::Status Group::UpdateBySums(const std::vector<Segment<T>>& segments, const Rule<T>& rule, const Label& label) {
  sums_.resize(Elements(segments) * sizeof(T));
  T* next = reinterpret_cast<T*>(sums_.data());
  std::vector<Segment<T>> sums;
  for (const auto& segment : segments) {
    sums.push_back({segment.in, next, segment.count});
    next += segment.count;
  }
  const absl::Status summed = Total(sums, T(1), label, kUpdate<T>);
  if (!summed.ok()) return summed;
  const double begin = Now();
  for (size_t i = 0; i < segments.size(); ++i) Descend(rule, sums[i].out, segments[i]);
  update_s_ += Now() - begin;
  return absl::OkStatus();
}

template <typename T>
Range Group::Slice(int rank, size_t elements) const {
  const size_t slice = RoundUp((elements + here_ - 1) / here_, kLine / sizeof(T));
  const size_t begin = std::min(elements, rank * slice);
  return {begin, std::min(elements, begin + slice)};
}

// Leaves the sums of slice r, one slice per rank of the host, in rank r's buffer, for all ranks to read: every rank
// writes its values of the others' slices where they can read them, waits, adds up its own slice, then over all hosts
// with the ranks of the same place there, and waits again. One rank adds for all of a host, so that all get the same
// bits. After a failure no rank of the host goes beyond the second wait.
template <typename T>
absl::Status Group::SumSlices(const std::vector<Segment<T>>& segments, T scale, const Signature& signature,
                              const Label& label) {
  const size_t elements = Elements(segments);
  T* own = Values<T>(place_);
  const Range mine = Slice<T>(place_, elements);
  const bool stream = stores_.Begin(elements * sizeof(T));
  stores_.Time([&] {
    for (const Range part : {Range{0, mine.begin}, Range{mine.end, elements}}) {
      ForEachPiece(segments, part, [&](const Segment<T>& piece, size_t offset) {
        Scale(piece.in, own + offset, piece.count, scale, stream);
      });
    }
  });
  absl::Status met = Meet(label);
  if (!met.ok()) return met;
  if constexpr (kSixteen<T>) {
    ForEachPiece(segments, mine,
                 [&](const Segment<T>& piece, size_t offset) { Scale(piece.in, own + offset, piece.count, scale); });
    std::vector<const T*> values;
    for (int rank = 0; rank < here_; ++rank) values.push_back(Values<T>(rank) + mine.begin);
    AddSixteen(values, own + mine.begin, mine.end - mine.begin);
  } else {
    stores_.Time([&] { AddSlices(segments, mine, scale); });
  }
  stores_.End(elements * sizeof(T));
  int& code = Failure(place_) = MPI_SUCCESS;
  if (algorithm_ == Algorithm::kNodeAware) {
    if (guard_ && place_ == 0) {
      if (!Compare(signature, label, peers_).ok()) code = MPI_ERR_OTHER;
    }
    if (code == MPI_SUCCESS) code = Allreduce(own + mine.begin, mine.end - mine.begin, peers_);
  }
  Arrive(1);
  met = AwaitAll(1);
  if (!met.ok()) return met;
  for (int rank = 0; rank < here_; ++rank) {
    if (Failure(rank) != MPI_SUCCESS) return MpiFailure(Failure(rank));
  }
  return absl::OkStatus();
}

template <typename T>
void Group::AddSlices(const std::vector<Segment<T>>& segments, Range mine, T scale) {
  T* own = Values<T>(place_);
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
}

template absl::Status Group::Sum<float>(const std::vector<Segment<float>>&, float, const Label&);
template absl::Status Group::Sum<double>(const std::vector<Segment<double>>&, double, const Label&);
template absl::Status Group::Sum<Float16>(const std::vector<Segment<Float16>>&, Float16, const Label&);
template absl::Status Group::Sum<BFloat16>(const std::vector<Segment<BFloat16>>&, BFloat16, const Label&);
template absl::Status Group::Update<float>(const std::vector<Segment<float>>&, const Rule<float>&, const Label&);
template absl::Status Group::Update<double>(const std::vector<Segment<double>>&, const Rule<double>&, const Label&);

}  // namespace harness

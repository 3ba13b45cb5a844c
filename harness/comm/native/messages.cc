// Sums by messages.

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "arithmetic.h"
#include "group.h"
#include "wire.h"

namespace harness {
namespace {

#ifndef HARNESS_MESSAGE
#define HARNESS_MESSAGE (size_t{1} << 30)  // most elements of one message: MPI counts them in an int
#endif

constexpr size_t kSmall = 16 * 1024;    // bytes below which a tensor is packed with its like
constexpr size_t kMessage = 60 * 1024;  // bytes: more are asked for first by Open MPI over TCP
constexpr int kAhead = 16;              // messages that go on at a time, to and from every peer
constexpr int kNap_us = 50;             // 6 kB at 1 Gbit/s

// Waits for the requests, where `code` says that they could be made. A patient rank leaves its core to others meanwhile.
// Returns what MPI said of one that failed; the others are given up then.
int Finish(std::vector<MPI_Request>& requests, int code, bool patient) {
  const int count = static_cast<int>(requests.size());
  std::vector<MPI_Status> statuses(count);
  if (code == MPI_SUCCESS && !patient) code = MPI_Waitall(count, requests.data(), statuses.data());
  for (int done = 0; code == MPI_SUCCESS && patient && !done;) {
    code = MPI_Testall(count, requests.data(), &done, statuses.data());
    if (code == MPI_SUCCESS && !done) usleep(kNap_us);
  }
  if (code == MPI_SUCCESS) return code;
  int kind = 0;
  MPI_Error_class(code, &kind);
  for (int i = 0; i < count; ++i) {
    const int failure = kind == MPI_ERR_IN_STATUS ? statuses[i].MPI_ERROR : MPI_SUCCESS;
    if (failure != MPI_SUCCESS && failure != MPI_ERR_PENDING) code = failure;
    if (requests[i] == MPI_REQUEST_NULL) continue;
    MPI_Cancel(&requests[i]);
    MPI_Request_free(&requests[i]);
  }
  return code;
}

}  // namespace

// In place, in as many messages as the counts need.
template <typename T>
int Group::Allreduce(T* values, size_t count, MPI_Comm comm) {
  for (size_t begin = 0; begin < count; begin += HARNESS_MESSAGE) {
    const int part = static_cast<int>(std::min<size_t>(HARNESS_MESSAGE, count - begin));
    int code = MPI_SUCCESS;
    if (kSixteen<T> || patient_ || comm == peers_) {
      code = SumParts(values + begin, part, comm);
    } else if constexpr (!kSixteen<T>) {
      code = MPI_Allreduce(MPI_IN_PLACE, values + begin, part, Datatype<T>(), MPI_SUM, comm);
    }
    if (code != MPI_SUCCESS) return code;
  }
  return MPI_SUCCESS;
}

// Every rank collects one part of all ranks' values, adds it up and hands the sums round: as many bytes as a ring sends.
// For 16-bit floats, which MPI cannot add, between hosts, where MPI_Allreduce took longer by TCP, and where the wait for
// messages is to leave the core to others.
template <typename T>
int Group::SumParts(T* values, int count, MPI_Comm comm) {
  int size = 1, own = 0;
  MPI_Comm_size(comm, &size);
  MPI_Comm_rank(comm, &own);
  const int most = (count + size - 1) / size;
  const auto part = [&](int rank) { return values + std::min<int64_t>(count, int64_t{most} * rank); };
  const auto length = [&](int rank) { return static_cast<int>(part(rank + 1) - part(rank)); };
  parts_.resize(sizeof(T) * most * size);
  const auto received = [&](int rank) { return reinterpret_cast<T*>(parts_.data()) + int64_t{most} * rank; };
  // Short messages, which go without asking first: the answer would wait behind what is sent the same way.
  const auto exchange = [&](auto sent, auto to_be_received) {
    std::vector<MPI_Request> ahead[kAhead];
    int code = MPI_SUCCESS;
    for (int begin = 0, turn = 0; begin < most && code == MPI_SUCCESS; begin += kMessage / sizeof(T), ++turn) {
      auto& requests = ahead[turn % kAhead];
      code = Finish(requests, code, patient_);
      requests.assign(2 * size, MPI_REQUEST_NULL);
      for (int step = 1; step < size && code == MPI_SUCCESS; ++step) {
        const int rank = (own + step) % size;
        const auto [in, in_count] = to_be_received(rank);
        const auto [out, out_count] = sent(rank);
        const auto left = [&](int count) { return std::clamp<int>(count - begin, 0, kMessage / sizeof(T)); };
        code = MPI_Irecv(in + begin, left(in_count), Datatype<T>(), rank, 0, comm, &requests[2 * step]);
        if (code != MPI_SUCCESS) break;
        code = MPI_Isend(out + begin, left(out_count), Datatype<T>(), rank, 0, comm, &requests[2 * step + 1]);
      }
    }
    for (auto& requests : ahead) code = Finish(requests, code, patient_);
    return code;
  };
  const int code = exchange([&](int rank) { return std::pair(part(rank), length(rank)); },
                            [&](int rank) { return std::pair(received(rank), length(own)); });
  if (code != MPI_SUCCESS) return code;
  if constexpr (kSixteen<T>) {
    std::vector<const T*> all;
    for (int rank = 0; rank < size; ++rank) all.push_back(rank == own ? part(own) : received(rank));
    AddSixteen(all, part(own), length(own));
  } else {
    for (int rank = 0; rank < size; ++rank) {
      if (rank != own) Add(part(own), received(rank), part(own), length(own));
    }
  }
  return exchange([&](int) { return std::pair(part(own), length(own)); },
                  [&](int rank) { return std::pair(part(rank), length(rank)); });
}

// Large tensors are summed where they lie; small ones are packed into one message.
template <typename T>
absl::Status Group::SumByMessages(const std::vector<Segment<T>>& segments, T scale) {
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
    const int code = Allreduce(segment.out, segment.count, comm_);
    if (code != MPI_SUCCESS) return MpiFailure(code);
  }
  if (small == 0) return absl::OkStatus();
  next = reinterpret_cast<T*>(packed_.data());
  const int code = Allreduce(next, small, comm_);
  if (code != MPI_SUCCESS) return MpiFailure(code);
  for (const auto& segment : segments) {
    if (segment.count * sizeof(T) >= kSmall) continue;
    std::memcpy(segment.out, next, segment.count * sizeof(T));
    next += segment.count;
  }
  return absl::OkStatus();
}

template int Group::Allreduce<float>(float*, size_t, MPI_Comm);
template absl::Status Group::SumByMessages<float>(const std::vector<Segment<float>>&, float);
template int Group::Allreduce<double>(double*, size_t, MPI_Comm);
template absl::Status Group::SumByMessages<double>(const std::vector<Segment<double>>&, double);
template int Group::Allreduce<Float16>(Float16*, size_t, MPI_Comm);
template absl::Status Group::SumByMessages<Float16>(const std::vector<Segment<Float16>>&, Float16);
template int Group::Allreduce<BFloat16>(BFloat16*, size_t, MPI_Comm);
template absl::Status Group::SumByMessages<BFloat16>(const std::vector<Segment<BFloat16>>&, BFloat16);

}  // namespace harness

// The memory that the ranks of a host share.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <memory>

#include "group.h"

namespace harness {

// POSIX shared memory under a name that is gone as soon as every rank of the host has opened it. Nothing changes where
// there is not enough of it, or the hosts are not as `algorithm` needs them: `memory_` stays null on every rank.
void Group::OpenSharedMemory(Algorithm algorithm) {
  Require(MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &host_));
  Require(MPI_Comm_set_errhandler(host_, MPI_ERRORS_RETURN));
  Require(MPI_Comm_size(host_, &here_));
  Require(MPI_Comm_rank(host_, &place_));
  int most = 0, least = 0;
  Require(MPI_Allreduce(&here_, &most, 1, MPI_INT, MPI_MAX, comm_));
  Require(MPI_Allreduce(&here_, &least, 1, MPI_INT, MPI_MIN, comm_));
  if (algorithm == Algorithm::kNodeAware ? most > 1 && most < size_ && most == least : most == size_) MapMemory();
  ranks_.resize(here_);
  Require(MPI_Allgather(&rank_, 1, MPI_INT, ranks_.data(), 1, MPI_INT, host_));
  if (memory_ != nullptr && algorithm == Algorithm::kNodeAware) {
    Require(MPI_Comm_split(comm_, place_, rank_, &peers_));
    Require(MPI_Comm_set_errhandler(peers_, MPI_ERRORS_RETURN));
    algorithm_ = Algorithm::kNodeAware;
  } else if (memory_ != nullptr) {
    algorithm_ = Algorithm::kShared;
  }
}

void Group::MapMemory() {
  region_ = kHeader + 2 * bytes_;  // two buffers: a rank may start a call while others still read the last one
  char name[64] = "";
  int file = -1;
  const std::shared_ptr<void> last(nullptr, [&](void*) {  // on every way out
    if (file >= 0) close(file);
    if (place_ == 0 && name[0] != 0) shm_unlink(name);
  });
  if (place_ == 0) {
    std::snprintf(name, sizeof name, "/harness-%ld-%p", static_cast<long>(getpid()), static_cast<void*>(this));
    file = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (file < 0) name[0] = 0;
    if (file >= 0 && ftruncate(file, here_ * region_) != 0) {
      close(file);
      file = -1;
    }
  }
  Require(MPI_Bcast(name, sizeof name, MPI_CHAR, 0, host_));
  if (place_ != 0 && name[0] != 0) file = shm_open(name, O_RDWR, 0600);
  // Every rank has its own region placed, on its NUMA node, before any maps it: a write beyond a full /dev/shm kills.
  int placed = file >= 0 && posix_fallocate(file, place_ * region_, region_) == 0;
  Require(MPI_Allreduce(MPI_IN_PLACE, &placed, 1, MPI_INT, MPI_MIN, host_));
  void* memory = MAP_FAILED;
  if (placed) memory = mmap(nullptr, here_ * region_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  int opened = memory != MAP_FAILED, all = 0;
  if (opened) {
    memory_ = static_cast<char*>(memory);
    Live();
  }
  const int code = MPI_Allreduce(&opened, &all, 1, MPI_INT, MPI_MIN, comm_);
  if (code != MPI_SUCCESS || !all) LeaveMemory();
  Require(code);
  short_of_memory_ = !all;
}

std::atomic<uint64_t>& Group::Arrivals(int rank, int phase) const {
  return *reinterpret_cast<std::atomic<uint64_t>*>(memory_ + rank * region_ + phase * kLine);
}

char* Group::Buffer(int rank, uint64_t call) const { return memory_ + rank * region_ + kHeader + (call % 2) * bytes_; }

// Lies behind the rank's counter of phase 1, which is raised after it is written.
int& Group::Failure(int rank) const {
  return *reinterpret_cast<int*>(memory_ + rank * region_ + kLine + sizeof(uint64_t));
}

}  // namespace harness

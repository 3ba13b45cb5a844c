// How the ranks of a host wait for each other in shared memory, and how they notice that one will not come.

#include <sched.h>
#include <sys/mman.h>

#include <cerrno>

#include "group.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define HARNESS_PAUSE() _mm_pause()
#else
#define HARNESS_PAUSE() sched_yield()
#endif

namespace harness {

std::atomic<double> patience{0};
std::atomic<bool> outlives{false};

namespace {

#ifndef HARNESS_SPINS
#define HARNESS_SPINS 0  // as if so many were over
#endif

constexpr int kSpins = 20000;     // pauses before the core is offered to others
constexpr int kEnded_us = 1'000'000;  // within which the launcher of ranks that outlive no other has ended them all
constexpr double kLook_s = 0.001;  // between looks at whether the awaited rank still lives

bool Lives(pthread_mutex_t& life) {
  const int code = pthread_mutex_trylock(&life);
  if (code == EBUSY) return true;
  if (code == 0 || code == EOWNERDEAD) pthread_mutex_unlock(&life);  // no one can hold it again after EOWNERDEAD
  return false;
}

}  // namespace

Peer& Group::PeerOf(int rank) const { return *reinterpret_cast<Peer*>(memory_ + rank * region_ + kPeer); }

void Group::Live() {
  static_assert(sizeof(Peer) <= kLine);
  pthread_mutex_t* const life = &PeerOf(place_).life;
  pthread_mutexattr_t robust;
  pthread_mutexattr_init(&robust);
  pthread_mutexattr_setpshared(&robust, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(life, &robust);
  living_ = std::thread([this, life] {
    pthread_mutex_lock(life);
    lives_.set_value();
    leaves_.get_future().wait();
    pthread_mutex_unlock(life);
  });
  lives_.get_future().wait();
}

void Group::LeaveMemory() {
  if (memory_ == nullptr) return;
  if (getpid() != process_) {  // a fork has the memory and not the thread
    living_.detach();
    return;
  }
  leaves_.set_value();
  living_.join();
  munmap(memory_, here_ * region_);
  memory_ = nullptr;
}

void Group::Arrive(int phase) const { Arrivals(place_, phase).store(call_, std::memory_order_release); }

bool Group::Arrived(int rank, int phase) const { return Arrivals(rank, phase).load(std::memory_order_acquire) >= call_; }

// Returns nothing, or the rank that does not come, or another that does not: the call cannot end then either. Only
// who has not come is looked at, and once more behind the look: a rank that came and died then has done its part, and
// no other rank may judge of the call otherwise.
MissingRank Group::Await(int rank, int phase) const {
  double begin = 0, looked = 0;
  for (int spins = HARNESS_SPINS; !Arrived(rank, phase);) {
    if (spins < kSpins) {
      ++spins;
      HARNESS_PAUSE();
      continue;
    }
    sched_yield();  // more ranks than cores: let the awaited one run
    const double now = Now();
    if (begin == 0) begin = looked = now;
    if (now - looked < kLook_s) continue;
    looked = now;
    const MissingRank missing = WhyNot(rank, phase, now - begin);
    if (!missing.none() && !Arrived(rank, phase)) return missing;
  }
  return {};
}

absl::Status Group::AwaitAll(int phase) const {
  for (int rank = 0; rank < here_; ++rank) {
    const MissingRank missing = Await(rank, phase);
    if (missing.none()) continue;
    if (!outlives.load()) usleep(kEnded_us);  // what the lost rank has said of itself then stands alone
    PeerOf(place_).gave_up.store(1, std::memory_order_release);
    return Lost(missing);
  }
  return absl::OkStatus();
}

MissingRank Group::WhyNot(int rank, int phase, double waited) const {
  for (int other = 0; other < here_; ++other) {
    const bool left = PeerOf(other).gave_up.load(std::memory_order_acquire);  // it may have closed the group since
    if (!left && !Arrived(other, phase) && !Lives(PeerOf(other).life) && !Arrived(other, phase)) {
      return {Loss::kGone, ranks_[other], waited};
    }
  }
  for (int other = 0; other < here_; ++other) {
    if (PeerOf(other).gave_up.load(std::memory_order_acquire)) {
      return {Loss::kGaveUp, ranks_[other], waited};
    }
  }
  const double limit = patience.load();
  if (limit > 0 && waited > limit) return {Loss::kLate, ranks_[rank], waited};
  return {};
}

}  // namespace harness

// How the ranks of a host wait for each other in shared memory, and how they notice that one will not come.

#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "group.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define HARNESS_PAUSE() _mm_pause()
#else
#define HARNESS_PAUSE() sched_yield()
#endif

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

namespace harness {

std::atomic<double> patience{0};

namespace {

constexpr int kSpins = 20000;     // pauses before the core is offered to others
constexpr double kLook_s = 0.01;  // between looks at whether the awaited rank still lives

// Field 22 of /proc/<pid>/stat, behind a name that may have blanks and parentheses; 0 where there is no such process.
uint64_t StartOf(int64_t pid) {
  char text[1024] = "";
  std::snprintf(text, sizeof text, "/proc/%lld/stat", static_cast<long long>(pid));
  std::FILE* file = std::fopen(text, "r");
  if (file == nullptr) return 0;
  const size_t length = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  text[length] = 0;
  const char* place = std::strrchr(text, ')');
  for (int field = 2; place != nullptr && field < 22; ++field) place = std::strchr(place + 1, ' ');
  unsigned long long started = 0;
  return place != nullptr && std::sscanf(place, "%llu", &started) == 1 ? started : 0;
}

}  // namespace

Peer& Group::PeerOf(int rank) const { return *reinterpret_cast<Peer*>(memory_ + rank * region_ + kPeer); }

void Group::Introduce() const {
  static_assert(sizeof(Peer) <= kLine);
  Peer& own = PeerOf(place_);
  own.pid = getpid();
  own.started = StartOf(getpid());
}

// Ranks with process numbers of their own (containers) would look at a stranger: the start tells. Such a rank has no
// file, and is noticed when patience ends.
void Group::Acquaint() {
  for (int rank = 0; rank < here_; ++rank) {
    const Peer& peer = PeerOf(rank);
    int file = rank == place_ ? -1 : static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0));
    if (file >= 0 && (peer.started == 0 || StartOf(peer.pid) != peer.started)) {
      close(file);
      file = -1;
    }
    peer_files_.push_back(file);
  }
}

void Group::Arrive(int phase) const { Arrivals(place_, phase).store(call_, std::memory_order_release); }

bool Group::Arrived(int rank, int phase) const { return Arrivals(rank, phase).load(std::memory_order_acquire) >= call_; }

// Returns an empty string, or why the rank does not come. Only who has not come is looked at, and once more behind the
// look: a rank that came and died then has done its part, and no other rank may judge of the call otherwise.
std::string Group::Await(int rank, int phase) const {
  double begin = 0, looked = 0;
  for (int spins = 0; !Arrived(rank, phase); ++spins) {
    if (spins < kSpins) {
      HARNESS_PAUSE();
      continue;
    }
    sched_yield();  // more ranks than cores: let the awaited one run
    const double now = Now();
    if (begin == 0) begin = looked = now;
    if (now - looked < kLook_s) continue;
    looked = now;
    const std::string why = WhyNot(rank, now - begin);
    if (!why.empty() && !Arrived(rank, phase)) return why;
  }
  return "";
}

std::string Group::AwaitAll(int phase) const {
  for (int rank = 0; rank < here_; ++rank) {
    const std::string why = Await(rank, phase);
    if (why.empty()) continue;
    PeerOf(place_).gave_up.store(1, std::memory_order_release);
    return why;
  }
  return "";
}

std::string Group::WhyNot(int rank, double waited) const {
  const std::string name = "harness: lost rank " + std::to_string(ranks_[rank]) + ": ";
  pollfd file{peer_files_[rank], POLLIN, 0};
  if (file.fd >= 0 && poll(&file, 1, 0) == 1) return name + "its process is gone";
  for (int other = 0; other < here_; ++other) {
    if (PeerOf(other).gave_up.load(std::memory_order_acquire)) {
      return "harness: lost rank: rank " + std::to_string(ranks_[other]) + " has given up";
    }
  }
  const double limit = patience.load();
  if (limit > 0 && waited > limit) return name + "it lives and has not come for " + std::to_string(waited) + " s";
  return "";
}

}  // namespace harness

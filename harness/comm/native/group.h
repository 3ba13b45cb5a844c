// A communicator, the memory its ranks share on one host, and the times of its calls.
#pragma once

#include <mpi.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"

namespace harness {

// Seconds on the clock of Python's `harness.base.turns.clock`: CLOCK_MONOTONIC, one for all processes of a host, less the
// seconds in which this rank has waited for its turns.
double Now();
double Paused();

// The processor's own counter, which costs half as much to read as a clock; the clock's nanoseconds elsewhere.
inline uint64_t Ticks() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  return static_cast<uint64_t>(1e9 * Now());
#endif
}

// The seconds that many short parts take of what goes on since this was made.
class Parts {
 public:
  template <typename Work>
  void Time(Work work) {
    const uint64_t begin = Ticks();
    work();
    ticks_ += Ticks() - begin;
  }
  double Seconds() const {
    const uint64_t all = Ticks() - first_;
    return all == 0 ? 0 : (Now() - begin_) * ticks_ / all;
  }

 private:
  const double begin_ = Now();
  const uint64_t first_ = Ticks();
  uint64_t ticks_ = 0;
};

// Which stores bring a rank's values into the memory that it shares: the usual ones, which are fastest where its core and
// the reader's have a cache in common, or streaming ones, which pass by the caches. A virtual machine moves its cores
// apart and together within seconds, so both are tried again and again, by all ranks in the same calls, and each rank
// keeps to what took it less time, its reading of the others' values included. The bits are the same.
class StoreChoice {
 public:
  // Begins a call of so many bytes and returns whether its stores are streaming ones.
  bool Begin(size_t bytes);
  template <typename Work>
  void Time(Work work) {
    const uint64_t begin = Ticks();
    work();
    ticks_ += Ticks() - begin;
  }
  void End(size_t bytes);

 private:
  uint64_t calls_ = 0, place_ = 0, ticks_ = 0;
  bool large_ = false, streams_ = false;
  std::vector<double> costs_[2];  // ticks a byte of a trial's calls
};

constexpr size_t kLine = 64;  // bytes of a cache line
constexpr int kPhases = 2;    // arrivals are counted apart for "written" and "summed"
constexpr size_t kText = kLine;  // bytes of a label as other ranks can read it, the last one 0
constexpr size_t kPeer = kPhases * kLine + 2 * kText;  // where a rank's Peer lies in its region
constexpr size_t kHeader = kPeer + kLine;

inline size_t RoundUp(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

// How the ranks of a group add up: by MPI_Allreduce; in memory that all of them share, being on one host; or in the
// memory of each host first, a slice a rank, and every rank its slice over all hosts then.
enum class Algorithm { kMessages = 0, kShared = 1, kNodeAware = 2 };

// Why a call of a group cannot end: Python's `harness.schema.record.LossReason` has the same numbers.
enum class Loss { kNone = 0, kGone = 1, kLate = 2, kGaveUp = 3, kMpi = 4 };

// A rank that a call waits for in vain, or nothing: `rank` is its number in the group, `waited` in seconds.
struct MissingRank {
  Loss reason = Loss::kNone;
  int rank = -1;
  double waited = 0;
  bool none() const { return reason == Loss::kNone; }
};

// Notes the loss of a rank for `harness_loss` and returns it as a status, kAborted and a sentence: TensorFlow takes
// kUnavailable for a failure of its own network and replaces it.
absl::Status Lost(const MissingRank& missing);

// What is thrown where no status can be returned.
struct StatusError : std::runtime_error {
  explicit StatusError(const absl::Status& failure) : std::runtime_error(std::string(failure.message())), status(failure) {}
  absl::Status status;
};

// One tensor of a grouped call; `in` and `out` may be the same memory. Where `out` are weights, `first` and `second`
// are the optimizer's own values of them: the velocity of momentum, the moments of Adam.
template <typename T>
struct Segment {
  const T* in;
  T* out;
  size_t count;
  T* first = nullptr;
  T* second = nullptr;
};

// How weights follow the sums of their gradients. Momentum's decay is `decay1`; Adam's `rate` has its corrections in it.
template <typename T>
struct Rule {
  enum Kind { kSgd, kMomentum, kAdam } kind;
  T rate, decay1, decay2, epsilon;
};

// What an exchange is called; equal on all ranks. Where it is not, the ranks end; one that can `describe` itself, a line
// for every tensor, fails with what differs instead.
struct Label {
  explicit Label(const std::string& name);
  void Add(uint64_t number) { hash = (hash ^ number) * 1099511628211u; }
  char text[kText] = "";
  uint64_t hash;
  std::function<std::string()> describe;
};

// What a rank publishes of the exchange that it is in: all ranks must be in the same one.
struct Signature {
  uint64_t elements;
  uint64_t label;  // its hash
  uint64_t kind;   // of numbers, and whether they are summed or weights are updated
  bool operator==(const Signature& other) const {
    return elements == other.elements && label == other.label && kind == other.kind;
  }
};

// What a rank is to the others of its host. A thread of its own holds `life` while the rank is in the group: it is
// robust, so that the kernel opens it to others as the rank's process dies, before it takes the memory back, which may
// take 50 ms. `gave_up`: no call of the group can end any more.
struct Peer {
  pthread_mutex_t life;
  std::atomic<int> gave_up;
};

// Elements begin .. end of a call's tensors laid end to end.
struct Range {
  size_t begin;
  size_t end;
};

// One call as it is looked at from another thread while it may still go on: `exit` is 0 until it has ended.
struct Call {
  std::atomic<uint64_t> number{0}, bytes{0};
  std::atomic<double> entry{0}, exit{0};
};

class Group {
 public:
  static constexpr uint64_t kRecent = 32;  // how many calls are kept

  // Opens a group on a duplicate of `comm` whose calls move at most `bytes` (larger ones go by messages). Where the
  // hosts are not as `algorithm` needs them, or shared memory is short, all ranks take messages. With `guard` messages are
  // preceded by a short one that compares what the ranks are about to exchange; in shared memory that is always done.
  // A `patient` group leaves the core to others while it waits for messages.
  // Throws StatusError when MPI fails.
  Group(MPI_Comm comm, size_t bytes, Algorithm algorithm, bool guard, bool patient);
  ~Group() { Close(); }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // Ends this rank's part in the group: whoever waits in one of its calls, here or on another rank, comes back with a
  // failure. Any thread may ask.
  void GiveUp();

  int rank() const { return rank_; }
  Algorithm algorithm() const { return algorithm_; }
  bool short_of_memory() const { return short_of_memory_; }

  // Writes the sums over all ranks of scale * in to out; kAborted says that a rank is lost, kInternal that MPI failed
  // otherwise. Ends all ranks, with a sentence, when they are in different exchanges; kFailedPrecondition on all of them
  // where the label describes itself and they are on one host or send messages.
  template <typename T>
  absl::Status Sum(const std::vector<Segment<T>>& segments, T scale, const Label& label);

  // Makes a step of `rule` on the weights by the sums over all ranks of in, without a pass of its own over sums and
  // weights where the ranks share memory; as Sum.
  template <typename T>
  absl::Status Update(const std::vector<Segment<T>>& segments, const Rule<T>& rule, const Label& label);

  // Returns the nanoseconds of a ping-pong: until a core, in shared memory, sees another one's answer. The median of so
  // many rounds, in which every rank waits for the one before it in a ring. All ranks of the host come together.
  // Throws StatusError when one does not.
  double Ping(size_t rounds);

  // Begin and end a call, which began at `entry`. One at a time in a process: a second one ends all ranks. What is
  // logged is without the seconds in which weights were updated, and only of calls that were `made`. What is exchanged in
  // several calls, pieces, is logged by the last one, from when this rank had all that there is to exchange: it says
  // `Ready` before that call.
  void Enter(double entry, size_t bytes, const Label& label);
  void Ready() { ready_ = Now(); }
  void Leave(double entry, bool made);
  std::vector<double>& times() { return times_; }
  // Writes number, bytes, entry and exit of the last calls, oldest first, to `out` and returns how many there are.
  uint64_t Recent(double* out) const;

 private:
  template <typename T>
  absl::Status Total(const std::vector<Segment<T>>& segments, T scale, const Label& label, uint64_t kind);
  template <typename T>
  absl::Status SumByMessages(const std::vector<Segment<T>>& segments, T scale);
  template <typename T>
  int Allreduce(T* values, size_t count, MPI_Comm comm);
  template <typename T>
  int SumParts(T* values, int count, MPI_Comm comm);
  template <typename T>
  absl::Status UpdateBySums(const std::vector<Segment<T>>& segments, const Rule<T>& rule, const Label& label);
  template <typename T, typename Gather, typename Step>
  void UpdateInOnePass(const std::vector<Segment<T>>& segments, Range range, const Rule<T>& rule, Gather gather,
                       Step step);
  template <typename T>
  absl::Status SumSlices(const std::vector<Segment<T>>& segments, T scale, const Signature& signature,
                         const Label& label);
  template <typename T>
  void AddSlices(const std::vector<Segment<T>>& segments, Range mine, T scale);
  template <typename T>
  T* Values(int rank) const { return reinterpret_cast<T*>(Buffer(rank, call_)); }
  template <typename T>
  Range Slice(int rank, size_t elements) const;
  void OpenSharedMemory(Algorithm algorithm);
  void MapMemory();
  void Close();
  void Publish(const Signature& signature, const Label& label);
  absl::Status Meet(const Label& label);
  absl::Status Refuse(const Label& label) const;
  absl::Status Compare(const Signature& signature, const Label& label, MPI_Comm comm);
  Signature& Published(int rank) const;
  char* Text(int rank) const;
  [[noreturn]] void End(const std::string& sentence, bool speak) const;
  std::atomic<uint64_t>& Arrivals(int rank, int phase) const;
  char* Buffer(int rank, uint64_t call) const;
  Peer& PeerOf(int rank) const;
  void Live();
  void LeaveMemory();
  void Arrive(int phase) const;
  bool Arrived(int rank, int phase) const;
  MissingRank Await(int rank, int phase) const;
  absl::Status AwaitAll(int phase) const;
  MissingRank WhyNot(int rank, int phase, double waited) const;
  int& Failure(int rank) const;

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  Algorithm algorithm_ = Algorithm::kMessages;
  bool guard_ = false;
  bool patient_ = false;
  bool short_of_memory_ = false;
  double update_s_ = 0;  // of the call that goes on
  double ready_ = 0;     // when all pieces of what is exchanged were there, 0 for an exchange in one call
  int place_ = 0;                        // this rank among those of its host
  int here_ = 1;                         // ranks of its host
  std::vector<int> ranks_;               // their numbers in the group
  MPI_Comm host_ = MPI_COMM_NULL;        // the ranks of this one's host
  MPI_Comm peers_ = MPI_COMM_NULL;       // the ranks of this one's place on every host, when node-aware
  size_t bytes_ = 0;
  uint64_t call_ = 0;
  size_t region_ = 0;        // bytes of one rank's part of the shared memory
  char* memory_ = nullptr;   // the regions of the host's ranks, in the order of ranks
  const pid_t process_ = getpid();
  std::thread living_;         // holds this rank's `Peer.life`
  std::promise<void> lives_, leaves_;
  std::vector<char> packed_;   // small tensors of a message
  std::vector<char> parts_;    // of all ranks' values, that this rank adds up
  std::vector<char> sums_;     // sums that came by messages and are to be applied
  StoreChoice stores_;
  std::vector<double> times_;  // entry, exit, entry, exit ...
  std::atomic<uint64_t> entered_{0};
  Call recent_[kRecent];
};

// Returns the open group with this number, or null.
Group* FindGroup(int64_t number);

// Of all groups: the seconds after which a rank that lives and does not come is given up, 0 for never, and whether this
// process outlives others.
extern std::atomic<double> patience;
extern std::atomic<bool> outlives;

// What MPI says about the return code of a failure: kAborted where a process has failed or the communicator was
// revoked, else kInternal.
absl::Status MpiFailure(int code);

// Throws StatusError where an MPI call returned `code` for a failure.
void Require(int code);

}  // namespace harness

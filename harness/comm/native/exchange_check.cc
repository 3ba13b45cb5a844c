// Every rank is in the same exchange, one at a time: what the ranks publish of theirs, and how they end when it differs.

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "group.h"

namespace harness {
namespace {

std::atomic<const char*> going_on{nullptr};  // the label of this process's exchange

// FNV-1a.
uint64_t Hash(const std::string& text) {
  uint64_t hash = 14695981039346656037u;
  for (const unsigned char letter : text) hash = (hash ^ letter) * 1099511628211u;
  return hash;
}

std::string Name(const Signature& signature, const char* text) {
  const char* types[] = {"float32", "float64", "float16", "bfloat16"};
  const int type = signature.kind & 32 ? 3 : signature.kind & 16 ? 2 : signature.kind & 8 ? 1 : 0;
  return "'" + std::string(text) + "' of " + std::to_string(signature.elements) + " " + types[type] +
         (signature.kind & 64 ? " with its update" : "");
}

std::string Mismatch(int one, const std::string& first, int other, const std::string& second, uint64_t call) {
  return "the ranks meet in different exchanges: in call " + std::to_string(call) + " rank " + std::to_string(one) +
         " exchanges " + first + ", rank " + std::to_string(other) + " " + second +
         "; all ranks must make the same exchanges in the same order";
}

}  // namespace

Label::Label(const std::string& name) : hash(Hash(name)) { std::strncpy(text, name.c_str(), kText - 1); }

// Published by turns: a rank may begin a call while others still compare the last one.
Signature& Group::Published(int rank) const {
  static_assert(sizeof(std::atomic<uint64_t>) + 2 * sizeof(Signature) <= kLine, "beside the counter of phase 0");
  char* line = memory_ + rank * region_ + sizeof(std::atomic<uint64_t>);
  return reinterpret_cast<Signature*>(line)[call_ % 2];
}

char* Group::Text(int rank) const { return memory_ + rank * region_ + kPhases * kLine + (call_ % 2) * kText; }

void Group::Publish(const Signature& signature, const Label& label) {
  Published(place_) = signature;
  std::memcpy(Text(place_), label.text, kText);
}

// Waits until all ranks of the host have published this call and written their values, and compares.
absl::Status Group::Meet(const Label& label) {
  Arrive(0);
  const absl::Status waited = AwaitAll(0);
  if (!waited.ok()) return waited;
  const Signature& own = Published(place_);
  for (int rank = 0; rank < here_; ++rank) {
    if (Published(rank) == own) continue;
    if (label.describe && here_ == size_) return Refuse(label);
    End(Mismatch(ranks_[place_], Name(own, Text(place_)), ranks_[rank], Name(Published(rank), Text(rank)), call_),
        place_ == 0);
  }
  return absl::OkStatus();
}

// The same by a short message.
absl::Status Group::Compare(const Signature& signature, const Label& label, MPI_Comm comm) {
  const uint64_t own[] = {call_, signature.elements, signature.label, signature.kind};
  uint64_t both[8], least[8];
  for (int i = 0; i < 4; ++i) both[i] = own[i], both[4 + i] = ~own[i];  // the least complement is of the greatest
  int code = MPI_Allreduce(both, least, 8, MPI_UINT64_T, MPI_MIN, comm);
  if (code != MPI_SUCCESS) return MpiFailure(code);
  bool equal = true;
  for (int i = 0; i < 4; ++i) equal = equal && least[i] == ~least[4 + i];
  if (equal) return absl::OkStatus();
  if (label.describe && comm == comm_) return Refuse(label);
  int rank = 0, size = 1;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  std::vector<char> all(size * sizeof(Signature)), texts(size * kText);
  code = MPI_Allgather(&signature, sizeof signature, MPI_BYTE, all.data(), sizeof signature, MPI_BYTE, comm);
  if (code == MPI_SUCCESS) code = MPI_Allgather(label.text, kText, MPI_BYTE, texts.data(), kText, MPI_BYTE, comm);
  if (code != MPI_SUCCESS) return MpiFailure(code);
  const Signature* found = reinterpret_cast<const Signature*>(all.data());
  int other = 1;
  while (other < size - 1 && found[other] == found[0]) ++other;
  End(Mismatch(0, Name(found[0], texts.data()), other, Name(found[other], texts.data() + other * kText), call_), rank == 0);
}

// What differs, from the descriptions of all ranks, which come here together.
absl::Status Group::Refuse(const Label& label) const {
  const std::string own = label.describe();
  const int length = own.size();
  std::vector<int> lengths(size_), starts(size_ + 1, 0);
  int code = MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, comm_);
  if (code != MPI_SUCCESS) return MpiFailure(code);
  for (int rank = 0; rank < size_; ++rank) starts[rank + 1] = starts[rank] + lengths[rank];
  std::string all(starts[size_], ' ');
  code = MPI_Allgatherv(own.data(), length, MPI_CHAR, all.data(), lengths.data(), starts.data(), MPI_CHAR, comm_);
  if (code != MPI_SUCCESS) return MpiFailure(code);
  std::vector<std::vector<std::string>> lines;
  for (int rank = 0; rank < size_; ++rank) lines.push_back(absl::StrSplit(all.substr(starts[rank], lengths[rank]), '\n'));
  int other = 1;
  while (other < size_ - 1 && lines[other] == lines[0]) ++other;
  size_t line = 0;
  while (line + 1 < std::min(lines[0].size(), lines[other].size()) && lines[0][line] == lines[other][line]) ++line;
  const auto asked = [line](const std::vector<std::string>& of) { return of[line].empty() ? "nothing more" : of[line]; };
  return absl::FailedPreconditionError(absl::StrCat("rank 0 asks for ", asked(lines[0]), ", rank ", other, " for ",
                                                    asked(lines[other]),
                                                    ": all ranks must ask for the same in the same order"));
}

// One rank speaks; the others give it time to.
void Group::End(const std::string& sentence, bool speak) const {
  if (!speak) sleep(5);
  std::fprintf(stderr, "harness: %s\n", sentence.c_str());
  std::fflush(stderr);
  usleep(200'000);  // the launcher forwards what was written before it ends everything
  MPI_Abort(comm_, 1);
  _exit(1);
}

void Group::Enter(double entry, size_t bytes, const Label& label) {
  const char* other = going_on.exchange(label.text);
  if (other != nullptr) {
    End("rank " + std::to_string(rank_) + " begins the exchange '" + label.text + "' of " + std::to_string(bytes) +
            " bytes while '" + other + "' goes on: exchanges are made one at a time",
        true);
  }
  update_s_ = 0;
  const uint64_t number = entered_.load(std::memory_order_relaxed);
  Call& call = recent_[number % kRecent];
  call.entry.store(entry);  // before `exit`: who sees no exit must not see the entry of an older call
  call.exit.store(0);
  call.number.store(number + 1);
  call.bytes.store(bytes);
  entered_.store(number + 1);
}

void Group::Leave(double entry, bool made) {
  const double exit = std::max(entry, Now() - update_s_);
  if (made) times_.insert(times_.end(), {ready_ > 0 ? ready_ : entry, exit});
  if (made) ready_ = 0;
  recent_[(entered_.load(std::memory_order_relaxed) - 1) % kRecent].exit.store(exit);
  going_on.store(nullptr);
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

}  // namespace harness

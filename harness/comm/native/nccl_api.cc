// NCCL as a library that may be there or not.

#include "nccl_api.h"

#include <dlfcn.h>

#include <mutex>

#include "absl/strings/str_cat.h"

namespace harness {
namespace {

std::mutex loading;
NcclApi functions;
bool loaded = false;

template <typename Function>
bool Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

// Returns the name of a function that the library has not, null when it has all.
const char* FindAll(void* library) {
  if (!Find(library, "ncclGetVersion", functions.version)) return "ncclGetVersion";
  if (!Find(library, "ncclGetUniqueId", functions.unique_id)) return "ncclGetUniqueId";
  if (!Find(library, "ncclCommInitRank", functions.open)) return "ncclCommInitRank";
  if (!Find(library, "ncclCommAbort", functions.abort)) return "ncclCommAbort";
  if (!Find(library, "ncclCommGetAsyncError", functions.async_error)) return "ncclCommGetAsyncError";
  if (!Find(library, "ncclGroupStart", functions.group_start)) return "ncclGroupStart";
  if (!Find(library, "ncclGroupEnd", functions.group_end)) return "ncclGroupEnd";
  if (!Find(library, "ncclAllReduce", functions.allreduce)) return "ncclAllReduce";
  if (!Find(library, "ncclRedOpCreatePreMulSum", functions.scaled_sum)) return "ncclRedOpCreatePreMulSum";
  if (!Find(library, "ncclGetErrorString", functions.text)) return "ncclGetErrorString";
  return nullptr;
}

}  // namespace

absl::Status LoadNccl(const char* path) {
  std::lock_guard<std::mutex> lock(loading);
  if (loaded) return absl::OkStatus();
  void* const library = dlopen(path[0] ? path : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::NotFoundError(dlerror());
  const char* const missing = FindAll(library);
  if (missing != nullptr) return absl::NotFoundError(absl::StrCat("NCCL is too old: it has no ", missing));
  loaded = true;
  return absl::OkStatus();
}

const NcclApi* Nccl() {
  std::lock_guard<std::mutex> lock(loading);
  return loaded ? &functions : nullptr;
}

absl::Status NcclStatus(NcclResult result, absl::string_view what) {
  if (result == kNcclSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(what, ": NCCL says '", Nccl()->text(result), "'"));
}

}  // namespace harness

/* What the harness calls of NCCL, without a GPU: sums of a single rank, doubles in host memory. A file of the name in
   STAND_IN_FAILS has the communicator report a failure of the network as soon as it is there. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { char bytes[128]; } Id;
static double scale = 1;
static int aborted = 0;

int ncclGetVersion(int* version) { *version = 22809; return 0; }
int ncclGetUniqueId(Id* id) {
  if (getenv("STAND_IN_NO_ID")) return 2;
  memset(id->bytes, 0, sizeof id->bytes);
  memcpy(id->bytes, "an id\0with a zero", 17);
  return 0;
}
int ncclCommInitRank(void** comm, int ranks, Id id, int rank) {
  *comm = &aborted;
  return ranks == 1 && rank == 0 && memcmp(id.bytes, "an id\0with a zero", 17) == 0 ? 0 : 5;
}
int ncclCommAbort(void* comm) { *(int*)comm = 1; return 0; }
int ncclCommGetAsyncError(void* comm, int* error) {
  const char* file = getenv("STAND_IN_FAILS");
  *error = file && access(file, F_OK) == 0 ? 6 : 0;
  return 0;
}
int ncclGroupStart(void) { return 0; }
int ncclGroupEnd(void) { return 0; }
int ncclAllReduce(const double* in, double* out, size_t count, int type, int operation, void* comm, void* stream) {
  if (type != 8 || stream == NULL) return 4;
  for (size_t i = 0; i < count; ++i) out[i] = (operation == 0 ? 1 : scale) * in[i];
  return 0;
}
int ncclRedOpCreatePreMulSum(int* operation, double* factor, int type, int residence, void* comm) {
  if (type != 8 || residence != 1) return 4;
  scale = *factor;
  *operation = 5;
  return 0;
}
const char* ncclGetErrorString(int result) {
  return result == 6 ? "remote process exited or there was a network error" : result ? "invalid argument" : "no error";
}

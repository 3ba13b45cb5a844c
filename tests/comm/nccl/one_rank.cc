// A group of one rank on the stand-in: prints its sums, then waits for the loss of a rank and prints what a call says.
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "nccl_group.h"

using namespace harness;

int main(int, char** arguments) {
  std::printf("%s\n", std::string(LoadNccl("/nowhere/libnccl.so.2").message()).c_str());
  if (!LoadNccl(arguments[1]).ok()) return 1;
  NcclId id, other = {};
  if (!NcclStatus(Nccl()->unique_id(&id), "no id").ok()) return 2;
  std::shared_ptr<NcclGroup> group;
  std::printf("%s\n", std::string(NcclGroup::Open(1, 0, other, &group).message()).c_str());
  if (!NcclGroup::Open(1, 0, id, &group).ok()) return 3;
  KeepNcclGroup(7, group);
  double in[3] = {1, 2, 3}, out[3] = {};
  int stream = 0;
  const auto add = [&](double scale) {
    const NcclSum sum = {kNcclFloat64, scale, &scale};
    return FindNcclGroup(7)->Sum({{in, out, 2}, {in + 2, out + 2, 1}}, sum, &stream);
  };
  for (const double scale : {1.0, 0.5, 1.0}) {
    if (!add(scale).ok()) return 4;
    std::printf("%g %g %g\n", out[0], out[1], out[2]);
  }
  std::ofstream(arguments[2]) << "";
  absl::Status status;
  for (int i = 0; i < 100 && status.ok(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    status = add(1.0);
  }
  std::printf("%d %s\n", static_cast<int>(status.code()), std::string(status.message()).c_str());
  LeaveNcclGroups();
  return FindNcclGroup(7) == nullptr ? 0 : 5;
}

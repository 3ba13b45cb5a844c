// One grouped allreduce of all tensors of a step by NCCL, on TensorFlow's own stream of the GPU, as an operation; and what
// Python calls through ctypes.
//
// An operation only puts its work on the stream: it needs no thread, no copy and no event. The group's communicator is
// opened by an operation too, which runs where TensorFlow has made its GPU the thread's own.

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nccl_group.h"
#include "sum_op.h"
#include "xla/stream_executor/device_description.h"
#include "xla/stream_executor/stream.h"
#include "xla/stream_executor/stream_executor.h"

namespace harness {
namespace {

using tensorflow::DEVICE_GPU;
using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::tstring;
using tensorflow::shape_inference::InferenceContext;

template <typename T>
constexpr NcclType Type() {
  if (std::is_same_v<T, Eigen::half>) return kNcclFloat16;
  if (std::is_same_v<T, Eigen::bfloat16>) return kNcclBfloat16;
  return std::is_same_v<T, float> ? kNcclFloat32 : kNcclFloat64;
}

// Returns the stream of the operation's GPU, null where it has none.
stream_executor::Stream* StreamOf(OpKernelContext* context) {
  auto* const device = context->op_device_context();
  return device == nullptr ? nullptr : device->stream();
}

absl::Status NoStream() { return absl::InternalError("TensorFlow has no stream for this operation's device"); }

}  // namespace

REGISTER_OP("HarnessNcclDevice")
    .Output("bus: string")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->Scalar());
      return absl::OkStatus();
    })
    .Doc("The PCI address of the GPU that the operation runs on.");

class NcclDeviceOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    auto* const stream = StreamOf(context);
    OP_REQUIRES(context, stream != nullptr, NoStream());
    Tensor* bus = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &bus));
    bus->scalar<tstring>()() = stream->parent()->GetDeviceDescription().pci_bus_id();
  }
};

REGISTER_KERNEL_BUILDER(Name("HarnessNcclDevice").Device(DEVICE_GPU).HostMemory("bus"), NcclDeviceOp);

REGISTER_OP("HarnessNcclOpen")
    .Input("id: string")
    .Attr("group: int")
    .Attr("ranks: int >= 1")
    .Attr("rank: int >= 0")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext*) { return absl::OkStatus(); })
    .Doc("Opens a group on the operation's GPU, on all ranks together; `id` is the one that NCCL made on a rank.");

class NcclOpenOp : public OpKernel {
 public:
  explicit NcclOpenOp(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("group", &group_));
    OP_REQUIRES_OK(construction, construction->GetAttr("ranks", &ranks_));
    OP_REQUIRES_OK(construction, construction->GetAttr("rank", &rank_));
  }

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES(context, Nccl() != nullptr, absl::FailedPreconditionError("NCCL is not loaded"));
    const tstring& bytes = context->input(0).scalar<tstring>()();
    NcclId id;
    OP_REQUIRES(context, bytes.size() == sizeof id.bytes, absl::InvalidArgumentError("this is no id of NCCL's"));
    std::memcpy(id.bytes, bytes.data(), sizeof id.bytes);
    std::shared_ptr<NcclGroup> group;
    OP_REQUIRES_OK(context, NcclGroup::Open(static_cast<int>(ranks_), static_cast<int>(rank_), id, &group));
    KeepNcclGroup(group_, std::move(group));
  }

 private:
  int64_t group_, ranks_, rank_;
};

REGISTER_KERNEL_BUILDER(Name("HarnessNcclOpen").Device(DEVICE_GPU).HostMemory("id"), NcclOpenOp);

HARNESS_REGISTER_SUM("HarnessNcclAllreduce");

template <typename T>
class NcclAllreduceOp : public SumOp<T> {
 public:
  explicit NcclAllreduceOp(OpKernelConstruction* construction)
      : SumOp<T>(construction), typed_scale_(static_cast<T>(this->scale())) {}

  void Compute(OpKernelContext* context) override {
    const std::shared_ptr<NcclGroup> group = FindNcclGroup(this->group());
    OP_REQUIRES(context, group != nullptr, this->NotOpen());
    auto* const stream = StreamOf(context);
    OP_REQUIRES(context, stream != nullptr, NoStream());
    OpInputList values;
    std::vector<NcclSegment> segments;
    OP_REQUIRES_OK(context, this->Take(context, &values, &segments));
    const NcclSum sum = {Type<T>(), this->scale(), &typed_scale_};
    const absl::Status summed = group->Sum(segments, sum, stream->platform_specific_handle().stream);
    OP_REQUIRES(context, summed.ok(), this->Failed(group->rank(), this->Bytes(segments), summed));
  }

 private:
  T typed_scale_;
};

HARNESS_REGISTER_SUM_KERNELS("HarnessNcclAllreduce", DEVICE_GPU, NcclAllreduceOp);

}  // namespace harness

extern "C" {

// Loads NCCL from `path`, where that is empty the one that the system finds, and writes its version, such as 22809.
// Returns 0, or the absl::StatusCode of what went wrong, with a sentence in `failure`, of `room` bytes.
int harness_nccl_load(const char* path, int* version, char* failure, uint64_t room) {
  absl::Status status = harness::LoadNccl(path);
  if (status.ok()) status = harness::NcclStatus(harness::Nccl()->version(version), "no version");
  std::snprintf(failure, room, "%s", std::string(status.message()).c_str());
  return static_cast<int>(status.code());
}

// Writes a new id for the communicator of all ranks that get it, of 128 bytes. Returns as `harness_nccl_load`.
int harness_nccl_id(char* bytes, char* failure, uint64_t room) {
  harness::NcclId id;
  const absl::Status status = harness::NcclStatus(harness::Nccl()->unique_id(&id), "no id");
  std::memcpy(bytes, id.bytes, sizeof id.bytes);
  std::snprintf(failure, room, "%s", std::string(status.message()).c_str());
  return static_cast<int>(status.code());
}

// At the end of the process: no group is watched any more.
void harness_nccl_leave() { harness::LeaveNcclGroups(); }

}  // extern "C"

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

#include "Eigen/Core"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nccl_group.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
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

double FromBits(int64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
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

REGISTER_OP("HarnessNcclAllreduce")
    .Input("values: N * T")
    .Input("sequence: resource")  // keeps exchanges in the order in which they were built (harness.comm.exchange_order)
    .Output("sums: N * T")
    .Attr("N: int >= 1")
    .Attr("T: {float, double, half, bfloat16}")
    .Attr("group: int")
    .Attr("scale: int")
    .SetIsStateful()  // never merged with another call, never folded away
    .SetShapeFn([](InferenceContext* context) {
      for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->input(i));
      return absl::OkStatus();
    })
    .Doc("Element-wise sums over all ranks of the values, each rank's multiplied by its scale first.");

template <typename T>
class NcclAllreduceOp : public OpKernel {
 public:
  explicit NcclAllreduceOp(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("group", &group_));
    int64_t scale;
    OP_REQUIRES_OK(construction, construction->GetAttr("scale", &scale));
    scale_ = FromBits(scale);
    typed_scale_ = static_cast<T>(scale_);
  }

  void Compute(OpKernelContext* context) override {
    const std::shared_ptr<NcclGroup> group = FindNcclGroup(group_);
    OP_REQUIRES(context, group != nullptr,
                absl::InvalidArgumentError(absl::StrCat("allreduce: group ", group_, " is not open")));
    auto* const stream = StreamOf(context);
    OP_REQUIRES(context, stream != nullptr, NoStream());
    OpInputList values;
    OP_REQUIRES_OK(context, context->input_list("values", &values));
    std::vector<NcclSegment> segments(values.size());
    size_t elements = 0;
    for (int i = 0; i < values.size(); ++i) {
      Tensor* sum = nullptr;
      OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({i}, i, values[i].shape(), &sum));
      const size_t count = static_cast<size_t>(values[i].NumElements());
      segments[i] = {values[i].flat<T>().data(), sum->flat<T>().data(), count};
      elements += count;
    }
    const NcclSum sum = {Type<T>(), scale_, &typed_scale_};
    const absl::Status summed = group->Sum(segments, sum, stream->platform_specific_handle().stream);
    OP_REQUIRES(context, summed.ok(),
                absl::Status(summed.code(), absl::StrCat("rank ", group->rank(), ": allreduce of ", elements * sizeof(T),
                                                         " bytes failed: ", summed.message())));
  }

 private:
  int64_t group_;
  double scale_;
  T typed_scale_;
};

#define HARNESS_REGISTER(T)                                                                                          \
  REGISTER_KERNEL_BUILDER(                                                                                           \
      Name("HarnessNcclAllreduce").Device(DEVICE_GPU).HostMemory("sequence").TypeConstraint<T>("T"), NcclAllreduceOp<T>)
HARNESS_REGISTER(float);
HARNESS_REGISTER(double);
HARNESS_REGISTER(Eigen::half);
HARNESS_REGISTER(Eigen::bfloat16);
#undef HARNESS_REGISTER

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

void harness_nccl_close(int64_t number) { harness::CloseNcclGroup(number); }

// At the end of the process: no group is watched any more.
void harness_nccl_leave() { harness::LeaveNcclGroups(); }

}  // extern "C"

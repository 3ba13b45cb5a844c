// One grouped allreduce of all tensors of a step, as a TensorFlow operation.
//
// A group is a communicator with its shared memory and its log of calls. It is opened from Python with a Fortran
// handle of the communicator, so that another communicator can take its place at run time.

#include <mpi.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "group.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace harness {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::OpInputList;
using tensorflow::Tensor;

REGISTER_OP("HarnessAllreduce")
    .Input("values: N * T")
    .Input("sequence: resource")  // keeps exchanges in the order in which they were built (harness.comm.exchange_order)
    .Output("sums: N * T")
    .Attr("N: int >= 1")
    .Attr("T: {float, double, half, bfloat16}")
    .Attr("group: int")
    .Attr("label: string")
    .Attr("last: bool = true")
    .Attr("scale: int")
    .Attr("names: list(string) = []")  // of all values: what differs between ranks is then an error, and no end
    .Attr("scope: string = ''")        // the rest is for fuse.cc
    .Attr("place: string = ''")
    .Attr("order: int = 0")
    .Attr("bytes: int = -1")  // -1 for a sum that shares no exchange
    .SetIsStateful()  // never merged with another call, never folded away
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->input(i));
      return absl::OkStatus();
    })
    .Doc("Element-wise sums over all ranks of the values, each rank's multiplied by its scale first.");

template <typename T>
class AllreduceOp : public OpKernel {
 public:
  explicit AllreduceOp(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("group", &group_));
    OP_REQUIRES_OK(construction, construction->GetAttr("last", &last_));
    std::string label;
    OP_REQUIRES_OK(construction, construction->GetAttr("label", &label));
    label_ = Label(label);
    int64_t scale;
    OP_REQUIRES_OK(construction, construction->GetAttr("scale", &scale));
    scale_ = static_cast<T>(FromBits(scale));
    OP_REQUIRES_OK(construction, construction->GetAttr("names", &names_));
    for (const std::string& name : names_) hashes_.push_back(Label(name).hash);
  }

  void Compute(OpKernelContext* context) override {
    const double entry = Now();
    Group* group = FindGroup(group_);
    OP_REQUIRES(context, group != nullptr, absl::InvalidArgumentError(absl::StrCat("allreduce: group ", group_, " is not open")));
    OpInputList values;
    OP_REQUIRES_OK(context, context->input_list("values", &values));
    std::vector<Segment<T>> segments(values.size());
    size_t elements = 0;
    for (int i = 0; i < values.size(); ++i) {
      Tensor* sum = nullptr;
      OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({i}, i, values[i].shape(), &sum));
      segments[i] = {values[i].flat<T>().data(), sum->flat<T>().data(), static_cast<size_t>(values[i].NumElements())};
      elements += segments[i].count;
    }
    const Label label = names_.empty() ? label_ : Described(values);
    group->Enter(entry, elements * sizeof(T), label_);
    const absl::Status summed = group->Sum(segments, scale_, label);
    group->Leave(entry, summed.ok() && last_);
    if (absl::IsFailedPrecondition(summed)) context->SetStatus(summed);
    if (absl::IsFailedPrecondition(summed)) return;
    OP_REQUIRES(context, summed.ok(),
                absl::Status(summed.code(), absl::StrCat("rank ", group->rank(), ": allreduce of ", elements * sizeof(T),
                                                         " bytes failed: ", summed.message())));
  }

 private:
  // The label with the names, types and shapes of all values in it.
  Label Described(const OpInputList& values) const {
    Label label = label_;
    for (int i = 0; i < values.size(); ++i) {
      label.Add(hashes_[i]);
      for (const int64_t size : values[i].shape().dim_sizes()) label.Add(size);
    }
    label.describe = [this, &values] {
      std::string lines;
      for (int i = 0; i < values.size(); ++i) {
        const std::string type = tensorflow::DataTypeString(values[i].dtype());
        absl::StrAppend(&lines, names_[i], " of ", type, " ", values[i].shape().DebugString(), "\n");
      }
      return lines;
    };
    return label;
  }

  int64_t group_;
  bool last_;  // piece of what is exchanged
  Label label_{""};
  std::vector<std::string> names_;
  std::vector<uint64_t> hashes_;  // of the names
  T scale_;
};

REGISTER_OP("HarnessReady")
    .Attr("group: int")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext*) { return absl::OkStatus(); })
    .Doc("Notes that this rank has all that the pieces of an exchange are of: its last piece ends what is logged from here.");

class ReadyOp : public OpKernel {
 public:
  explicit ReadyOp(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("group", &group_));
  }

  void Compute(OpKernelContext* context) override {
    Group* group = FindGroup(group_);
    OP_REQUIRES(context, group != nullptr, absl::InvalidArgumentError(absl::StrCat("ready: group ", group_, " is not open")));
    group->Ready();
  }

 private:
  int64_t group_;
};

REGISTER_KERNEL_BUILDER(Name("HarnessReady").Device(tensorflow::DEVICE_CPU), ReadyOp);

REGISTER_KERNEL_BUILDER(Name("HarnessAllreduce").Device(tensorflow::DEVICE_CPU).TypeConstraint<float>("T"),
                        AllreduceOp<float>);
REGISTER_KERNEL_BUILDER(Name("HarnessAllreduce").Device(tensorflow::DEVICE_CPU).TypeConstraint<double>("T"),
                        AllreduceOp<double>);
REGISTER_KERNEL_BUILDER(Name("HarnessAllreduce").Device(tensorflow::DEVICE_CPU).TypeConstraint<Eigen::half>("T"),
                        AllreduceOp<Eigen::half>);
REGISTER_KERNEL_BUILDER(Name("HarnessAllreduce").Device(tensorflow::DEVICE_CPU).TypeConstraint<Eigen::bfloat16>("T"),
                        AllreduceOp<Eigen::bfloat16>);

}  // namespace harness

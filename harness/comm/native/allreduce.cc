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
#include "sum_op.h"
#include "tensorflow/core/framework/types.h"

namespace harness {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::OpInputList;

HARNESS_REGISTER_SUM("HarnessAllreduce")
    .Attr("label: string")
    .Attr("last: bool = true")
    .Attr("names: list(string) = []")  // of all values: what differs between ranks is then an error, and no end
    .Attr("scope: string = ''")        // the rest is for fuse.cc
    .Attr("place: string = ''")
    .Attr("order: int = 0")
    .Attr("bytes: int = -1");  // -1 for a sum that shares no exchange

template <typename T>
class AllreduceOp : public SumOp<T> {
 public:
  explicit AllreduceOp(OpKernelConstruction* construction) : SumOp<T>(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("last", &last_));
    std::string label;
    OP_REQUIRES_OK(construction, construction->GetAttr("label", &label));
    label_ = Label(label);
    OP_REQUIRES_OK(construction, construction->GetAttr("names", &names_));
    for (const std::string& name : names_) hashes_.push_back(Label(name).hash);
  }

  void Compute(OpKernelContext* context) override {
    const double entry = Now();
    Group* group = FindGroup(this->group());
    OP_REQUIRES(context, group != nullptr, this->NotOpen());
    OpInputList values;
    std::vector<Segment<T>> segments;
    OP_REQUIRES_OK(context, this->Take(context, &values, &segments));
    const size_t bytes = this->Bytes(segments);
    const Label label = names_.empty() ? label_ : Described(values);
    group->Enter(entry, bytes, label_);
    const absl::Status summed = group->Sum(segments, static_cast<T>(this->scale()), label);
    group->Leave(entry, summed.ok() && last_);
    if (absl::IsFailedPrecondition(summed)) context->SetStatus(summed);
    if (absl::IsFailedPrecondition(summed)) return;
    OP_REQUIRES(context, summed.ok(), this->Failed(group->rank(), bytes, summed));
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

  bool last_;  // piece of what is exchanged
  Label label_{""};
  std::vector<std::string> names_;
  std::vector<uint64_t> hashes_;  // of the names
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

HARNESS_REGISTER_SUM_KERNELS("HarnessAllreduce", tensorflow::DEVICE_CPU, AllreduceOp);

}  // namespace harness

// Gradient descent inside the allreduce, as a TensorFlow operation: the sums are never written, only the weights.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "group.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace harness {

using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::Var;

REGISTER_OP("HarnessFusedSgd")
    .Input("variables: N * resource")
    .Input("gradients: N * T")
    .Input("rate: T")
    .Input("sequence: resource")
    .Attr("N: int >= 1")
    .Attr("T: {float, double}")
    .Attr("group: int")
    .Attr("label: string")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext*) { return absl::OkStatus(); })
    .Doc("Subtracts rate times the sum over all ranks of each gradient from its variable.");

template <typename T>
class FusedSgdOp : public OpKernel {
 public:
  explicit FusedSgdOp(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("group", &group_));
    std::string label;
    OP_REQUIRES_OK(construction, construction->GetAttr("label", &label));
    label_ = Label(label);
  }

  void Compute(OpKernelContext* context) override {
    const double entry = Now();
    Group* group = FindGroup(group_);
    OP_REQUIRES(context, group != nullptr, absl::InvalidArgumentError(absl::StrCat("allreduce: group ", group_, " is not open")));
    OpInputList variables, gradients;
    OP_REQUIRES_OK(context, context->input_list("variables", &variables));
    OP_REQUIRES_OK(context, context->input_list("gradients", &gradients));
    const Tensor* rate = nullptr;
    OP_REQUIRES_OK(context, context->input("rate", &rate));
    std::vector<tensorflow::core::RefCountPtr<Var>> held(variables.size());
    std::vector<std::unique_ptr<tensorflow::mutex_lock>> locks;
    std::vector<Segment<T>> segments(variables.size());
    size_t elements = 0;
    for (int i = 0; i < variables.size(); ++i) {
      OP_REQUIRES_OK(context, LookupResource(context, variables[i].scalar<tensorflow::ResourceHandle>()(), &held[i]));
      locks.push_back(std::make_unique<tensorflow::mutex_lock>(*held[i]->mu()));
      OP_REQUIRES_OK(context, MakeWritable(context, held[i].get()));
      Tensor* weights = held[i]->tensor();
      OP_REQUIRES(context, weights->shape() == gradients[i].shape(),
                  absl::InvalidArgumentError("allreduce: a gradient is not of its variable's shape"));
      segments[i] = {gradients[i].flat<T>().data(), weights->flat<T>().data(),
                     static_cast<size_t>(gradients[i].NumElements())};
      elements += segments[i].count;
    }
    group->Enter(entry, elements * sizeof(T), label_);
    const std::string failure = group->FusedSgd(segments, rate->scalar<T>()(), label_);
    group->Leave(entry);
    OP_REQUIRES(context, failure.empty(),
                absl::InternalError(absl::StrCat("rank ", group->rank(), ": update failed: ", failure)));
  }

 private:
  // A tensor that someone still reads is replaced by a copy, as TensorFlow's own updates do.
  static absl::Status MakeWritable(OpKernelContext* context, Var* variable) {
    Tensor* weights = variable->tensor();
    if (!weights->IsInitialized()) return absl::FailedPreconditionError("allreduce: a variable has no value");
    if (weights->RefCountIsOne()) return absl::OkStatus();
    Tensor copy;
    TF_RETURN_IF_ERROR(context->allocate_temp(weights->dtype(), weights->shape(), &copy));
    copy.flat<T>() = weights->flat<T>();
    *weights = copy;
    return absl::OkStatus();
  }

  int64_t group_;
  Label label_{""};
};

REGISTER_KERNEL_BUILDER(Name("HarnessFusedSgd").Device(tensorflow::DEVICE_CPU).TypeConstraint<float>("T"),
                        FusedSgdOp<float>);
REGISTER_KERNEL_BUILDER(Name("HarnessFusedSgd").Device(tensorflow::DEVICE_CPU).TypeConstraint<double>("T"),
                        FusedSgdOp<double>);

}  // namespace harness

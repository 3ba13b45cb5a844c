// The optimizer's step inside the allreduce, as a TensorFlow operation: the sums are never written, only the weights.

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "group.h"
#include "sum_op.h"
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

REGISTER_OP("HarnessUpdate")
    .Input("variables: N * resource")
    .Input("first: F * resource")
    .Input("second: S * resource")
    .Input("gradients: N * T")
    .Input("rate: T")
    .Input("steps: int64")
    .Input("sequence: resource")
    .Attr("N: int >= 1")
    .Attr("F: int >= 0")
    .Attr("S: int >= 0")
    .Attr("T: {float, double}")
    .Attr("rule: {'sgd', 'momentum', 'adam'}")
    .Attr("constants: list(int)")  // decay1, decay2 and epsilon
    .Attr("group: int")
    .Attr("label: string")
    .Attr("last: bool = true")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext*) { return absl::OkStatus(); })
    .Doc("Makes a step of the rule on the variables by the sums over all ranks of their gradients, after `steps` steps.");

template <typename T>
class UpdateOp : public OpKernel {
 public:
  explicit UpdateOp(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("group", &group_));
    OP_REQUIRES_OK(construction, construction->GetAttr("last", &last_));
    std::string label, rule;
    OP_REQUIRES_OK(construction, construction->GetAttr("label", &label));
    label_ = Label(label);
    OP_REQUIRES_OK(construction, construction->GetAttr("rule", &rule));
    kind_ = rule == "sgd" ? Rule<T>::kSgd : rule == "momentum" ? Rule<T>::kMomentum : Rule<T>::kAdam;
    OP_REQUIRES_OK(construction, construction->GetAttr("constants", &constants_));
  }

  void Compute(OpKernelContext* context) override {
    const double entry = Now();
    Group* group = FindGroup(group_);
    OP_REQUIRES(context, group != nullptr, absl::InvalidArgumentError(absl::StrCat("update: group ", group_, " is not open")));
    OpInputList variables, first, second, gradients;
    OP_REQUIRES_OK(context, context->input_list("variables", &variables));
    OP_REQUIRES_OK(context, context->input_list("first", &first));
    OP_REQUIRES_OK(context, context->input_list("second", &second));
    OP_REQUIRES_OK(context, context->input_list("gradients", &gradients));
    const int needed = kind_ == Rule<T>::kSgd ? 0 : variables.size();
    OP_REQUIRES(context, first.size() == needed && second.size() == (kind_ == Rule<T>::kAdam ? needed : 0),
                absl::InvalidArgumentError("update: the optimizer's values are not those of the variables"));
    const Tensor *rate = nullptr, *steps = nullptr;
    OP_REQUIRES_OK(context, context->input("rate", &rate));
    OP_REQUIRES_OK(context, context->input("steps", &steps));
    Held held;
    std::vector<Segment<T>> segments(variables.size());
    size_t elements = 0;
    for (int i = 0; i < variables.size(); ++i) {
      Segment<T>& segment = segments[i];
      segment.in = gradients[i].flat<T>().data();
      segment.count = gradients[i].NumElements();
      OP_REQUIRES_OK(context, Hold(context, variables[i], gradients[i], held, &segment.out));
      if (i < first.size()) OP_REQUIRES_OK(context, Hold(context, first[i], gradients[i], held, &segment.first));
      if (i < second.size()) OP_REQUIRES_OK(context, Hold(context, second[i], gradients[i], held, &segment.second));
      elements += segment.count;
    }
    const Rule<T> rule = MakeRule(rate->scalar<T>()(), steps->scalar<int64_t>()());
    group->Enter(entry, elements * sizeof(T), label_);
    const absl::Status updated = group->Update(segments, rule, label_);
    group->Leave(entry, updated.ok() && last_);
    OP_REQUIRES(context, updated.ok(),
                absl::Status(updated.code(), absl::StrCat("rank ", group->rank(), ": update failed: ", updated.message())));
  }

 private:
  // Variables in use, and their locks.
  struct Held {
    std::vector<tensorflow::core::RefCountPtr<Var>> variables;
    std::vector<std::unique_ptr<tensorflow::mutex_lock>> locks;
  };

  static absl::Status Hold(OpKernelContext* context, const Tensor& handle, const Tensor& like, Held& held, T** values) {
    tensorflow::core::RefCountPtr<Var> variable;
    TF_RETURN_IF_ERROR(LookupResource(context, handle.scalar<tensorflow::ResourceHandle>()(), &variable));
    held.locks.push_back(std::make_unique<tensorflow::mutex_lock>(*variable->mu()));
    TF_RETURN_IF_ERROR(MakeWritable(context, variable.get()));
    if (variable->tensor()->shape() != like.shape()) {
      return absl::InvalidArgumentError("update: a gradient is not of its variable's shape");
    }
    *values = variable->tensor()->template flat<T>().data();
    held.variables.push_back(std::move(variable));
    return absl::OkStatus();
  }

  // Adam's moments begin as zeros: what that takes from them is in the rate.
  Rule<T> MakeRule(T rate, int64_t steps) const {
    const auto constant = [this](int number) { return static_cast<T>(FromBits(constants_[number])); };
    const T decay1 = constant(0), decay2 = constant(1);
    if (kind_ == Rule<T>::kAdam) {
      const T done = static_cast<T>(steps + 1);
      rate = rate * std::sqrt(1 - std::pow(decay2, done)) / (1 - std::pow(decay1, done));
    }
    return {kind_, rate, decay1, decay2, constant(2)};
  }

  // A tensor that someone still reads is replaced by a copy, as TensorFlow's own updates do.
  static absl::Status MakeWritable(OpKernelContext* context, Var* variable) {
    Tensor* weights = variable->tensor();
    if (!weights->IsInitialized()) return absl::FailedPreconditionError("update: a variable has no value");
    if (weights->RefCountIsOne()) return absl::OkStatus();
    Tensor copy;
    TF_RETURN_IF_ERROR(context->allocate_temp(weights->dtype(), weights->shape(), &copy));
    copy.flat<T>() = weights->flat<T>();
    *weights = copy;
    return absl::OkStatus();
  }

  int64_t group_;
  bool last_;  // piece of what is exchanged
  Label label_{""};
  typename Rule<T>::Kind kind_;
  std::vector<int64_t> constants_;
};

REGISTER_KERNEL_BUILDER(Name("HarnessUpdate").Device(tensorflow::DEVICE_CPU).TypeConstraint<float>("T"),
                        UpdateOp<float>);
REGISTER_KERNEL_BUILDER(Name("HarnessUpdate").Device(tensorflow::DEVICE_CPU).TypeConstraint<double>("T"),
                        UpdateOp<double>);

}  // namespace harness

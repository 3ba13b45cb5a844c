// What a sum over the ranks is as an operation of TensorFlow, on processors and on GPUs.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "Eigen/Core"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

// Begins the registration of a sum by its inputs, outputs and attributes; what one device alone needs may follow.
#define HARNESS_REGISTER_SUM(name)                                                                                 \
  REGISTER_OP(name)                                                                                                \
      .Input("values: N * T")                                                                                      \
      .Input("sequence: resource") /* keeps exchanges in the order in which they were built (reduction.py) */ \
      .Output("sums: N * T")                                                                                       \
      .Attr("N: int >= 1")                                                                                         \
      .Attr("T: {float, double, half, bfloat16}")                                                                  \
      .Attr("group: int")                                                                                          \
      .Attr("scale: int")                                                                                          \
      .SetIsStateful() /* never merged with another call, never folded away */                                     \
      .SetShapeFn(harness::ShapesOfValues)                                                                         \
      .Doc("Element-wise sums over all ranks of the values, each rank's multiplied by its scale first.")

// Registers `Kernel`, a template of the type that is summed, for all of these types.
#define HARNESS_REGISTER_SUM_KERNELS(name, device, Kernel)                     \
  HARNESS_REGISTER_SUM_KERNEL(name, device, float, Kernel<float>);             \
  HARNESS_REGISTER_SUM_KERNEL(name, device, double, Kernel<double>);           \
  HARNESS_REGISTER_SUM_KERNEL(name, device, Eigen::half, Kernel<Eigen::half>); \
  HARNESS_REGISTER_SUM_KERNEL(name, device, Eigen::bfloat16, Kernel<Eigen::bfloat16>)
#define HARNESS_REGISTER_SUM_KERNEL(name, device, T, ...) \
  REGISTER_KERNEL_BUILDER(Name(name).Device(device).HostMemory("sequence").TypeConstraint<T>("T"), __VA_ARGS__)

namespace harness {

// A double as operations have it among their attributes, whose own floats have fewer digits.
inline double FromBits(int64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The sums have the shapes of the values.
inline absl::Status ShapesOfValues(tensorflow::shape_inference::InferenceContext* context) {
  for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->input(i));
  return absl::OkStatus();
}

// The kernel of a sum of values of type `T`, up to what sums them.
template <typename T>
class SumOp : public tensorflow::OpKernel {
 public:
  explicit SumOp(tensorflow::OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("group", &group_));
    int64_t scale;
    OP_REQUIRES_OK(construction, construction->GetAttr("scale", &scale));
    scale_ = FromBits(scale);
  }

 protected:
  // Returns the values, and sets `segments` to where each lies and where its sum goes, which may be the same memory.
  template <typename Segment>
  absl::Status Take(tensorflow::OpKernelContext* context, tensorflow::OpInputList* values,
                    std::vector<Segment>* segments) {
    TF_RETURN_IF_ERROR(context->input_list("values", values));
    segments->resize(values->size());
    for (int i = 0; i < values->size(); ++i) {
      const tensorflow::Tensor& value = (*values)[i];
      tensorflow::Tensor* sum = nullptr;
      TF_RETURN_IF_ERROR(context->forward_input_or_allocate_output({i}, i, value.shape(), &sum));
      (*segments)[i] = {value.flat<T>().data(), sum->flat<T>().data(), static_cast<size_t>(value.NumElements())};
    }
    return absl::OkStatus();
  }

  template <typename Segment>
  static size_t Bytes(const std::vector<Segment>& segments) {
    size_t elements = 0;
    for (const Segment& segment : segments) elements += segment.count;
    return elements * sizeof(T);
  }

  absl::Status NotOpen() const {
    return absl::InvalidArgumentError(absl::StrCat("allreduce: group ", group_, " is not open"));
  }

  // Returns a failure with the rank and the bytes in its sentence.
  static absl::Status Failed(int rank, size_t bytes, const absl::Status& failure) {
    return absl::Status(failure.code(), absl::StrCat("rank ", rank, ": allreduce of ", bytes, " bytes failed: ",
                                                     failure.message()));
  }

  int64_t group() const { return group_; }
  double scale() const { return scale_; }

 private:
  int64_t group_ = 0;
  double scale_ = 1;
};

}  // namespace harness

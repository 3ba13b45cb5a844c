// An error that Python has found inside a graph, raised as the kind that it is: Python's own operation knows few kinds.

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace harness {

REGISTER_OP("HarnessRefuse")
    .Input("code: int32")  // of absl::StatusCode, 0 for no error
    .Input("message: string")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext*) { return absl::OkStatus(); })
    .Doc("Fails with `code` and `message`, or does nothing.");

class RefuseOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) override {
    const auto code = context->input(0).scalar<int32_t>()();
    if (code == 0) return;
    const auto& message = context->input(1).scalar<tensorflow::tstring>()();
    context->SetStatus(absl::Status(static_cast<absl::StatusCode>(code), std::string(message)));
  }
};

REGISTER_KERNEL_BUILDER(Name("HarnessRefuse").Device(tensorflow::DEVICE_CPU), RefuseOp);

}  // namespace harness

// The place in a step at which a rank may have to wait for its turn, as a TensorFlow operation (harness.base.turns).

#include "group.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

extern "C" {

// Python's `TurnState`: how many passes are left until `boundary` is called, which returns the next such number; when
// the last pass was; and the seconds in which this rank has waited for its turns, which are in no time (`Now`).
struct {
  int64_t left;
  double last;
  double paused;
} harness_turn_state = {0, 0, 0};

}  // extern "C"

namespace harness {
namespace {

int64_t (*boundary)() = nullptr;

}  // namespace

double Paused() { return harness_turn_state.paused; }

REGISTER_OP("HarnessTurn")
    .Input("sequence: resource")  // as of an exchange: a step passes here before it
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext*) { return absl::OkStatus(); })
    .Doc("Waits until it is this process's turn.");

class TurnOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext*) override {
    auto& state = harness_turn_state;
    if (state.left <= 0) return;
    state.last = Now();
    if (--state.left == 0) state.left = boundary();
  }
};

REGISTER_KERNEL_BUILDER(Name("HarnessTurn").Device(tensorflow::DEVICE_CPU), TurnOp);

}  // namespace harness

extern "C" {

// Says what is called at the end of the passes that are left.
void harness_take_turns(int64_t (*called)()) { harness::boundary = called; }

}  // extern "C"

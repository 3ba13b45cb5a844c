// The rows of one step in one pass, as a TensorFlow operation: picked by number, mirrored where chance says so,
// standardised and written as the network reads them.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "arithmetic.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace harness {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// Whether the row of this number is mirrored: harness.train.batch_input.flip, in the same 32-bit arithmetic.
bool Mirrored(uint32_t row, uint32_t salt) {
  uint32_t mixed = row * 0x9E3779B1u + salt;
  mixed ^= mixed >> 15;
  return (mixed * 0x85EBCA77u) >> 31 == 1;
}

template <typename T>
void MirrorImage(const T* image, size_t lines, size_t width, size_t channels, T* out) {
  for (size_t line = 0; line < lines; ++line) {
    const T* in = image + line * width * channels;
    for (size_t x = width; x-- > 0; out += channels) std::memcpy(out, in + x * channels, channels * sizeof(T));
  }
}

constexpr size_t kAhead = 2048;  // bytes of rows that are fetched while one is worked on: they lie anywhere in memory

// To the second cache. An address where nothing is does no harm.
void Fetch(const void* row, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kLine) __builtin_prefetch(static_cast<const char*>(row) + at, 0, 2);
}

void Standardise(const float* row, const float*, const float*, float* out, size_t count) {
  std::memcpy(out, row, count * sizeof(float));  // float rows are standardised when they are loaded
}

void Standardise(const uint8_t* row, const float* shift, const float* factor, float* out, size_t count) {
  ShiftAndScale(row, shift, factor, out, count);
}

}  // namespace

REGISTER_OP("HarnessBatch")
    .Input("rows: T")
    .Input("labels: int32")
    .Input("order: int32")
    .Input("step: int32")
    .Input("shift: float")
    .Input("factor: float")
    .Input("salt: uint32")
    .Output("inputs: float")
    .Output("targets: int32")
    .Attr("T: {uint8, float}")
    .Attr("mirror: bool")
    .Attr("first: int")
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle rows, order, inputs;
      TF_RETURN_IF_ERROR(context->WithRankAtLeast(context->input(0), 1, &rows));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(2), 2, &order));
      const DimensionHandle batch = context->Dim(order, 1);
      TF_RETURN_IF_ERROR(context->ReplaceDim(rows, 0, batch, &inputs));
      context->set_output(0, inputs);
      context->set_output(1, context->Vector(batch));
      return absl::OkStatus();
    })
    .Doc("The rows order[step] as (x - shift) * factor, and their labels; shift and factor as long as a row.");

template <typename T>
class BatchOp : public OpKernel {
 public:
  explicit BatchOp(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("mirror", &mirror_));
    OP_REQUIRES_OK(construction, construction->GetAttr("first", &first_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &rows = context->input(0), &labels = context->input(1), &order = context->input(2);
    const int64_t available = rows.dim_size(0), batch = order.dim_size(1), step = context->input(3).scalar<int32_t>()();
    OP_REQUIRES(context, 0 <= step && step < order.dim_size(0),
                absl::InvalidArgumentError(absl::StrCat("batch: there is no step ", step)));
    const size_t width = available ? rows.NumElements() / available : 0;
    const bool images = std::is_same_v<T, uint8_t>;
    OP_REQUIRES(context, !images || context->input(4).NumElements() == width && context->input(5).NumElements() == width,
                absl::InvalidArgumentError("batch: shift and factor must be as long as a row"));
    OP_REQUIRES(context, !mirror_ || rows.dims() == 4, absl::InvalidArgumentError("batch: only images are mirrored"));
    TensorShape shape = rows.shape();
    shape.set_dim(0, batch);
    Tensor *inputs = nullptr, *targets = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &inputs));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({batch}), &targets));
    const uint32_t salt = context->input(6).scalar<uint32_t>()();
    const int32_t* numbers = order.flat<int32_t>().data() + step * batch;
    const float *shift = context->input(4).flat<float>().data(), *factor = context->input(5).flat<float>().data();
    float* out = inputs->flat<float>().data();
    std::vector<T> turned(mirror_ ? width : 0);
    const auto fetch = [&](int64_t i) {
      if (i < batch) Fetch(rows.flat<T>().data() + numbers[i] * width, width * sizeof(T));
    };
    const int64_t ahead = 1 + kAhead / std::max<size_t>(1, width * sizeof(T));
    for (int64_t i = 0; i < ahead; ++i) fetch(i);
    for (int64_t i = 0; i < batch; ++i, out += width) {
      const int64_t number = numbers[i];
      OP_REQUIRES(context, 0 <= number && number < available,
                  absl::InvalidArgumentError(absl::StrCat("batch: there is no row ", number)));
      const T* row = rows.flat<T>().data() + number * width;
      fetch(i + ahead);
      if (mirror_ && Mirrored(static_cast<uint32_t>(first_ + number), salt)) {
        MirrorImage(row, rows.dim_size(1), rows.dim_size(2), rows.dim_size(3), turned.data());
        row = turned.data();
      }
      Standardise(row, shift, factor, out, width);
      targets->flat<int32_t>()(i) = labels.flat<int32_t>()(number);
    }
  }

 private:
  bool mirror_;
  int64_t first_;
};

REGISTER_KERNEL_BUILDER(Name("HarnessBatch").Device(tensorflow::DEVICE_CPU).TypeConstraint<uint8_t>("T"),
                        BatchOp<uint8_t>);
REGISTER_KERNEL_BUILDER(Name("HarnessBatch").Device(tensorflow::DEVICE_CPU).TypeConstraint<float>("T"), BatchOp<float>);

}  // namespace harness

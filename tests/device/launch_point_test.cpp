// The launch point: the operation that a recorder receives, and equality of a replay and the call.
#include "device/launch_point.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace metroplex::device::launch_point_test {
namespace {

struct Log final : Recorder {
  std::vector<Operation> operations, products;
  void issued(const Operation& product) override { products.push_back(product); }
  void run(Operation operation) override {
    operation.run();
    operations.push_back(std::move(operation));
  }
};

void scale(const double* in, double* out, double factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = factor * in[i];
}

at::Tensor scaled(const Target& target, const at::Tensor& x, double factor) {
  const at::Tensor out = at::empty_like(x), nothing;
  launch(target, {"scale", {&x, &nothing, nullptr}, {&out}, {{"factor", factor}, {"n", x.numel()}}}, scale, CpuOnly{},
         static_cast<const double*>(x.const_data_ptr()), static_cast<double*>(out.mutable_data_ptr()), factor,
         x.numel());
  return out;
}

TEST(LaunchPoint, ARecorderIsToldNameTensorsAndScalarsAndCanRunItAgain) {
  Log log;
  const at::Tensor x = at::arange(5, at::kDouble);
  at::Tensor out = scaled({at::kCPU, &log, false}, x, 3);
  EXPECT_TRUE(at::equal(out, 3 * x));
  ASSERT_EQ(log.operations.size(), 1u);
  const Operation& operation = log.operations[0];
  EXPECT_EQ(operation.name, "scale");
  EXPECT_EQ(operation.group, "");
  ASSERT_EQ(operation.reads.size(), 1u);  // null and undefined ones do not count
  ASSERT_EQ(operation.writes.size(), 1u);
  EXPECT_EQ(operation.reads[0].const_data_ptr(), x.const_data_ptr());
  EXPECT_EQ(operation.writes[0].const_data_ptr(), out.const_data_ptr());
  ASSERT_EQ(operation.scalars.size(), 2u);
  EXPECT_STREQ(operation.scalars[0].name, "factor");
  EXPECT_EQ(std::get<double>(operation.scalars[0].value), 3.0);
  EXPECT_EQ(std::get<int64_t>(operation.scalars[1].value), 5);
  EXPECT_EQ(operation.flops, 0);
  EXPECT_EQ(bytes_of(operation), 2 * 5 * 8);
  x.add_(10);
  operation.run();
  EXPECT_TRUE(at::equal(out, 3 * x));
  out = at::Tensor();  // the operation holds the memory
  operation.run();
  EXPECT_TRUE(at::equal(operation.writes[0], 3 * x));
}

TEST(LaunchPoint, AProductOfLibtorchIsToldAndNotRun) {
  Log log;
  const Target target{at::kCPU, &log, false};
  const at::Tensor a = at::ones({2, 3}, at::kFloat), b = at::ones({3, 5}, at::kFloat), out = at::mm(a, b), nothing;
  issued({}, {"mm", {&a, &b}, {&out}, {}, 60});
  issued(target, {"mm", {&a, &b, &nothing}, {&out}, {}, 60});
  EXPECT_TRUE(log.operations.empty());
  ASSERT_EQ(log.products.size(), 1u);
  EXPECT_EQ(log.products[0].flops, 60);
  EXPECT_EQ(bytes_of(log.products[0]), 4 * (2 * 3 + 3 * 5 + 2 * 5));
  EXPECT_FALSE(log.products[0].run);
}

TEST(LaunchPoint, WithoutARecorderTheOperatorRuns) {
  const at::Tensor x = at::arange(5, at::kDouble);
  EXPECT_TRUE(at::equal(scaled({}, x, 2), 2 * x));
}

TEST(LaunchPoint, OnTheMetaDeviceNothingIsComputedButARecorderIsTold) {
  Log log;
  const at::Tensor x = at::empty({5}, at::TensorOptions().dtype(at::kDouble).device(at::kMeta));
  const Target gpu{at::Device(at::kCUDA, 0), &log, true};
  EXPECT_EQ(gpu.memory(), at::Device(at::kMeta));
  EXPECT_EQ(scaled(gpu, x, 2).sizes(), x.sizes());
  ASSERT_EQ(log.operations.size(), 1u);
  EXPECT_TRUE(log.operations[0].writes[0].is_meta());
}

TEST(LaunchPoint, AnOperatorOfTheCpuIsRefusedOnAGpu) {
  const at::Tensor x = at::arange(5, at::kDouble);
  EXPECT_ANY_THROW(scaled({at::Device(at::kCUDA, 0), nullptr, false}, x, 2));
}

}  // namespace
}  // namespace metroplex::device::launch_point_test

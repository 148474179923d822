// The meter counts the allocations of its thread in requested bytes.
#include "device/memory_meter.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <thread>

#include "device/device.h"

namespace metroplex::test::memory_meter_test {
namespace {

TEST(MemoryMeter, CountsWhatIsHeldAndTheMostThatWas) {
  device::MemoryMeter meter;
  at::Tensor a = at::empty({100}, at::kFloat);
  EXPECT_EQ(meter.bytes(), 400);
  {
    const at::Tensor b = at::empty({50}, at::kDouble), view = a.narrow(0, 0, 10);
    EXPECT_EQ(meter.bytes(), 800);
  }
  EXPECT_EQ(meter.bytes(), 400);
  EXPECT_EQ(meter.peak_bytes(), 800);
  meter.reset_peak();
  EXPECT_EQ(meter.peak_bytes(), 400);
  a = at::Tensor();
  EXPECT_EQ(meter.bytes(), 0);
  EXPECT_EQ(meter.peak_bytes(), 400);
}

TEST(MemoryMeter, HostAndGpuAreCountedApart) {
  device::MemoryMeter host, gpu(device::MemoryMeter::Of::gpu);
  const at::Tensor here = at::empty({100}, at::kFloat);
  EXPECT_EQ(host.bytes(), 400);
  EXPECT_EQ(gpu.bytes(), 0);
  if (device::device_count() == 0) return;
  const at::Tensor there = at::empty({100}, at::TensorOptions().dtype(at::kFloat).device(at::kCUDA));
  EXPECT_EQ(host.bytes(), 400);
  EXPECT_EQ(gpu.bytes(), 512);
}

TEST(MemoryMeter, AnInnerOneAddsToTheOuter) {
  device::MemoryMeter outer;
  at::Tensor a = at::empty({10}, at::kByte), b;
  {
    device::MemoryMeter inner;
    b = at::empty({5}, at::kByte);
    EXPECT_EQ(inner.bytes(), 5);
  }
  EXPECT_EQ(outer.bytes(), 15);
  a = b = at::Tensor();
  EXPECT_EQ(outer.bytes(), 0);
}

TEST(MemoryMeter, EachThreadHasItsOwn) {
  device::MemoryMeter meter;
  std::thread other([] {
    device::MemoryMeter own;
    const at::Tensor a = at::empty({1000}, at::kByte);
    EXPECT_EQ(own.bytes(), 1000);
  });
  other.join();
  EXPECT_EQ(meter.peak_bytes(), 0);
}

TEST(MemoryMeter, DoesNotCountWhatNoRankOwns) {
  device::MemoryMeter meter;
  at::Tensor held = at::empty({10}, at::kByte), message;
  {
    const device::UnmeteredMemory unmetered;
    message = at::empty({1000}, at::kByte);
  }
  EXPECT_EQ(meter.bytes(), 10);
  EXPECT_EQ(meter.peak_bytes(), 10);
  {
    const device::UnmeteredMemory unmetered;
    message = at::Tensor();
  }
  held = at::Tensor();
  EXPECT_EQ(meter.bytes(), 0);
}

TEST(MemoryMeter, SeesWhatBackwardAllocates) {
  device::MemoryMeter meter;
  at::Tensor x = at::ones({1000}, at::kFloat).requires_grad_(true);
  torch::autograd::backward({(x * x).sum()}, {});
  EXPECT_EQ(meter.bytes(), 8000);  // x and its gradient
  x = at::Tensor();
  EXPECT_EQ(meter.bytes(), 0);
}

}  // namespace
}  // namespace metroplex::test::memory_meter_test

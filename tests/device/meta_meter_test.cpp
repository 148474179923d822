// Memory of meta tensors as a listener receives it.
#include "device/memory_meter.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace metroplex::test::meta_meter_test {
namespace {

struct Heard final : device::MetaMemory::Listener {
  std::vector<int64_t> all;
  void allocated(int64_t bytes, const void*) override { all.push_back(bytes); }
  void freed(int64_t bytes, const void*) override { all.push_back(-bytes); }
};

at::Tensor meta(int64_t n, at::ScalarType type = at::kFloat) {
  return at::empty({n}, at::TensorOptions().dtype(type).device(at::kMeta));
}

TEST(MetaMemory, HearsEveryByteOnceWhateverTheViews) {
  Heard heard;
  const device::MetaMemory listening(heard);
  at::Tensor x = meta(7, at::kBFloat16);
  const at::Tensor view = x.narrow(0, 2, 3);
  x = at::Tensor();
  EXPECT_EQ(heard.all, (std::vector<int64_t>{14}));
  at::Tensor sum = view + meta(3, at::kBFloat16);
  sum = at::Tensor();
  EXPECT_EQ(heard.all, (std::vector<int64_t>{14, 6, 6, -6, -6}));
  EXPECT_EQ(meta(0).numel(), 0);
  EXPECT_EQ(heard.all.size(), 5u) << "nothing is no bytes";
}

TEST(MetaMemory, NestsWithOthersAndWithMeters) {
  Heard outer, inner;
  const device::MemoryMeter host, gpu(device::MemoryMeter::Of::gpu);
  const device::MetaMemory around(outer);
  {
    const device::MetaMemory inside(inner);
    meta(2);
    at::empty({3}, at::kFloat);
  }
  meta(1);
  EXPECT_EQ(inner.all, (std::vector<int64_t>{8, -8}));
  EXPECT_EQ(outer.all, (std::vector<int64_t>{8, -8, 4, -4}));
  EXPECT_EQ(host.peak_bytes(), 12);
  EXPECT_EQ(gpu.peak_bytes(), 0);
}

TEST(MetaMemory, HearsItsOwnThreadFromTheListenersTimeOn) {
  Heard first, second;
  at::Tensor kept;
  {
    const device::MetaMemory listening(first);
    kept = meta(4);
    std::thread([] { meta(100); }).join();
  }
  const at::Tensor unheard = meta(5);
  const device::MetaMemory listening(second);
  kept = at::Tensor();
  EXPECT_EQ(first.all, (std::vector<int64_t>{16}));
  EXPECT_EQ(second.all, (std::vector<int64_t>{-16})) << "a block from before the listener";
}

}  // namespace
}  // namespace metroplex::test::meta_meter_test

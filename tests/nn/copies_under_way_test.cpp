// Memory of offload to the host: a copy's source stays allocated until the computation has waited for the copy. The
// number of host buffers is the maximum number in use at once.
#include "nn/copies_under_way.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "device/memory_meter.h"
#include "nn/saved_stores.h"

namespace metroplex::nn::copies_under_way_test {
namespace {

at::Tensor bytes(int64_t n, at::Device device = at::kCPU) {
  return at::empty({n}, at::TensorOptions().dtype(at::kByte).device(device));
}

struct Copies {
  PendingCopies pending;
  std::vector<int64_t> joined;
  device::MemoryMeter meter;

  void add(int64_t n) {
    pending.add(bytes(n), [this, n] {
      joined.push_back(n);
      EXPECT_GE(meter.bytes(), n) << "it is there until the stream has been made to wait";
    });
  }
};

TEST(CopiesUnderWay, KeepWhatTheYoungestReadAndJoinTheOthersInOrder) {
  Copies copies;
  for (const int64_t n : {1000, 2000, 4000, 8000}) copies.add(n);
  EXPECT_EQ(copies.joined, (std::vector<int64_t>{1000, 2000}));
  EXPECT_EQ(copies.meter.bytes(), 4000 + 8000);
  EXPECT_EQ(copies.pending.issued(), 4);
}

// A copy back was enqueued after the third copy; the computation has waited for it, which does not cover the fourth.
TEST(CopiesUnderWay, GoWithoutAWaitWhereSomethingBehindThemHasBeenWaitedFor) {
  Copies copies;
  for (const int64_t n : {1000, 2000, 4000}) copies.add(n);
  const int64_t issued = copies.pending.issued();
  copies.add(8000);
  copies.joined.clear();
  copies.pending.joined(issued);
  EXPECT_EQ(copies.meter.bytes(), 8000);
  EXPECT_TRUE(copies.joined.empty());
  copies.pending.joined(issued);
  EXPECT_EQ(copies.meter.bytes(), 8000);
  copies.pending.joined(copies.pending.issued());
  EXPECT_EQ(copies.meter.bytes(), 0);
}

TEST(HostBuffers, AreAsManyAsWereTakenAtOnceAndKeepTheirAddresses) {
  int made = 0;
  HostBuffers buffers([&](int64_t n) {
    ++made;
    return bytes(n);
  });
  std::vector<void*> first;
  for (int step = 0; step < 3; ++step) {
    at::Tensor a = buffers.take(64), b = buffers.take(64), c = buffers.take(32);
    const std::vector<void*> now{a.mutable_data_ptr(), b.mutable_data_ptr(), c.mutable_data_ptr()};
    if (step == 0) first = now;
    EXPECT_EQ(now, first) << "a captured step finds them where they were";
    for (at::Tensor* x : {&b, &a, &c}) buffers.release(std::move(*x));
  }
  EXPECT_EQ(made, 3);
}

struct Peak final : device::MetaMemory::Listener {
  int64_t now = 0, peak = 0;
  void allocated(int64_t n, const void*) override { peak = std::max(peak, now += n); }
  void freed(int64_t n, const void*) override { now -= n; }
};

// As on a GPU: of ten sets of 1 MiB each the device holds the current one and two with copies in flight. In backward
// it holds the one in use and the one being copied back.
TEST(ActivationStore, OnTheMetaDeviceHoldsWhatCopiesToTheHostHold) {
  constexpr int64_t kSet = 1 << 20;
  device::Target target;
  target.device = at::Device(at::kCUDA, 0);
  target.meta = true;
  const auto store = make_meta_store(config::Offload::host, target);
  Peak peak;
  const device::MetaMemory memory(peak);
  std::vector<SavedSet> sets;
  std::vector<Saved> saved;
  for (int i = 0; i < 10; ++i) {
    store->begin();
    saved.push_back(store->keep(bytes(kSet, at::kMeta)));
    sets.push_back(store->end());
  }
  EXPECT_EQ(peak.peak, 3 * kSet);
  EXPECT_EQ(peak.now, 2 * kSet);
  for (size_t i = sets.size(); i-- > 0;) {
    sets[i].restore();
    if (i > 0) sets[i - 1].prefetch();
    EXPECT_EQ(peak.now, (i > 0 ? 2 : 1) * kSet);
    saved.pop_back();
  }
  EXPECT_EQ(peak.peak, 3 * kSet);
  EXPECT_EQ(peak.now, 0);
}

}  // namespace
}  // namespace metroplex::nn::copies_under_way_test

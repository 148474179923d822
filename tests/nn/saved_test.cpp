// Tensors saved, recomputed or moved to a file between forward and backward.
#include "nn/saved.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "device/memory_meter.h"
#include "support/folder.h"

namespace metroplex::test::saved_test {
namespace {

std::shared_ptr<nn::ActivationStore> file_store(const std::string& folder) {
  config::Memory memory;
  memory.offload_activations = "file";
  memory.offload_directory = folder;
  return nn::make_activation_store(memory);
}

TEST(Saved, IsMadeOnceForAllCopiesAndDiesWithTheLast) {
  int made = 0;
  const device::MemoryMeter meter;
  {
    nn::Saved first = nn::Saved::recomputed([&] {
      ++made;
      return at::full({16}, 3.0, at::kDouble);
    });
    const nn::Saved second = first;
    EXPECT_TRUE(first.defined());
    EXPECT_EQ(made, 0);
    EXPECT_EQ(first.get().sum().item<double>(), 48);
    EXPECT_TRUE(second.get().is_alias_of(first.get()));
    first = nn::Saved();
    EXPECT_EQ(meter.bytes(), 16 * 8);
  }
  EXPECT_EQ(made, 1);
  EXPECT_EQ(meter.bytes(), 0);
  EXPECT_FALSE(nn::Saved().defined());
  EXPECT_FALSE(nn::Saved().get().defined());
}

TEST(ActivationStore, FileGivesBackEveryViewOfAStorageThatItHoldsOnce) {
  const Folder folder;
  const device::MemoryMeter meter;
  const auto store = file_store(folder.path());
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kLong}) {
    at::Tensor whole = at::arange(5000).to(dtype).view({50, 100}), other = at::arange(7).to(dtype);
    const at::Tensor expected = whole.clone(), expected_other = other.clone();
    const int64_t copies = meter.bytes() - static_cast<int64_t>(whole.nbytes() + other.nbytes());
    store->begin();
    nn::Saved a = store->keep(whole), b = store->keep(whole.t().narrow(0, 3, 5)), c = store->keep(other);
    whole = other = at::Tensor();
    EXPECT_GT(meter.bytes(), copies);
    nn::SavedSet set = store->end();
    EXPECT_EQ(meter.bytes(), copies);
    EXPECT_TRUE(folder.empty());
    set.prefetch();
    set.restore();
    EXPECT_EQ(meter.bytes(), copies + static_cast<int64_t>(expected.nbytes() + expected_other.nbytes()));
    EXPECT_TRUE(at::equal(a.get(), expected));
    EXPECT_TRUE(at::equal(b.get(), expected.t().narrow(0, 3, 5)));
    EXPECT_EQ(b.get().strides(), expected.t().strides());
    EXPECT_TRUE(b.get().is_alias_of(a.get()));
    EXPECT_TRUE(at::equal(c.get(), expected_other));
    a = b = c = nn::Saved();
    EXPECT_EQ(meter.bytes(), copies);
  }
}

TEST(ActivationStore, ManySetsLieBesideEachOtherAndTheirRoomIsUsedAgain) {
  const Folder folder;
  const auto store = file_store(folder.path());
  const auto value_of = [](int64_t i) { return at::full({300 * (i % 7 + 1)}, static_cast<double>(i), at::kDouble); };
  struct HeldMemory {
    int64_t value;
    nn::Saved saved;
    nn::SavedSet set;
  };
  std::vector<HeldMemory> held;
  for (int64_t i = 0; i < 200; ++i) {
    store->begin();
    nn::Saved saved = store->keep(value_of(i));
    held.push_back({i, std::move(saved), store->end()});
    if (i % 3 == 2) {  // one from the middle, restored; one dropped unread
      HeldMemory& middle = held[held.size() / 2];
      middle.set.restore();
      EXPECT_TRUE(at::equal(middle.saved.get(), value_of(middle.value)));
      held.erase(held.begin() + static_cast<int64_t>(held.size() / 2));
      held.erase(held.begin());
    }
  }
  for (HeldMemory& each : held) EXPECT_TRUE(at::equal(each.saved.get(), value_of(each.value))) << each.value;
}

TEST(ActivationStore, WhatIsKeptOutsideASetOrByTheHostStaysInMemory) {
  config::Memory memory;
  EXPECT_EQ(nn::make_activation_store(memory), nullptr);
  memory.offload_activations = "host";
  const auto store = nn::make_activation_store(memory);
  const at::Tensor x = at::arange(10);
  EXPECT_TRUE(store->keep(x).get().is_alias_of(x));
  store->begin();
  const nn::Saved kept = store->keep(x);
  nn::SavedSet set = store->end();
  set.restore();
  EXPECT_TRUE(kept.get().is_alias_of(x));
  EXPECT_THROW(memory.offload_activations = "tape", base::Error);
}

TEST(ActivationStore, AFolderThatIsNotThereIsAnErrorWithItsName) {
  try {
    file_store("/no/such/folder");
    FAIL();
  } catch (const base::Error& error) {
    EXPECT_NE(std::string(error.what()).find("memory.offload_directory '/no/such/folder'"), std::string::npos);
  }
}

// A file size limit simulates a full disk.
TEST(ActivationStore, NoRoomIsAnErrorWithTheFolderAndTheBytes) {
  const Folder folder;
  const auto store = file_store(folder.path());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{16 * 4096, before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string message;
  int64_t sets = 0;
  std::vector<nn::SavedSet> held;
  std::vector<nn::Saved> kept;
  try {
    for (; sets < 100; ++sets) {
      store->begin();
      kept.push_back(store->keep(at::zeros({512}, at::kDouble)));
      held.push_back(store->end());
    }
  } catch (const base::Error& error) { message = error.what(); }
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(sets, 16);
  EXPECT_NE(message.find("no space for another 4096 bytes of activations after 65536"), std::string::npos) << message;
  EXPECT_NE(message.find(folder.path()), std::string::npos) << message;
  for (int64_t i = 0; i < sets; ++i) EXPECT_TRUE(at::equal(kept[i].get(), at::zeros({512}, at::kDouble)));
}

}  // namespace
}  // namespace metroplex::test::saved_test

// Microbatches at fixed addresses: values, addresses, and changes that count as another form.
#include "pipeline/static_batches.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace metroplex::test::static_batches_test {
namespace {

using pipeline::StaticBatches;

constexpr int64_t kSamples = 2, kLength = 5;

// Has every optional tensor; `step` and `number` determine the values.
nn::Microbatch batch(int64_t step, int64_t number = 0, at::ScalarType mask = at::kFloat) {
  const int64_t first = 1000 * step + 100 * number;
  const at::Tensor numbers = at::arange(kSamples * kLength, at::kLong).view({kSamples, kLength});
  nn::Microbatch batch;
  batch.tokens = numbers + first;
  batch.labels = numbers + first + 1;
  batch.loss_mask = (numbers.remainder(3) + step).to(mask);
  batch.mask_sum = batch.loss_mask.sum(at::kDouble).item<double>();
  batch.position_ids = numbers.remainder(2) + first;
  batch.documents.ids = numbers.div(4, "floor") + first;
  batch.documents.offsets = nn::document_offsets(batch.documents.ids, kLength);
  nn::set_counters(batch, step, at::arange(first, first + kSamples, at::kLong));
  batch.sequence.rows = at::arange(kLength, at::kLong) + step;
  batch.sequence.all_rows = at::stack({batch.sequence.rows, batch.sequence.rows + kLength});
  batch.sequence.row_ranges = {{0, 2}, {7, 3}};
  batch.sequence.length = 10;
  return batch;
}

std::vector<nn::Microbatch> batches(int64_t step, int64_t count = 3, at::ScalarType mask = at::kFloat) {
  std::vector<nn::Microbatch> all;
  for (int64_t i = 0; i < count; ++i) all.push_back(batch(step, i, mask));
  return all;
}

std::vector<const void*> addresses(const StaticBatches& held) {
  std::vector<const void*> all;
  for (const nn::Microbatch& each : held.batches()) {
    for (const auto& [name, tensor] : nn::kMicrobatchTensors) all.push_back(tensor(each).const_data_ptr());
  }
  return all;
}

void expect_holds(const StaticBatches& held, const std::vector<nn::Microbatch>& want) {
  ASSERT_EQ(held.batches().size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    const nn::Microbatch& got = held.batches()[i];
    for (const auto& [name, tensor] : nn::kMicrobatchTensors) {
      ASSERT_EQ(tensor(got).defined(), tensor(want[i]).defined()) << name;
      if (!tensor(got).defined()) continue;
      EXPECT_TRUE(at::equal(tensor(got), tensor(want[i]))) << name << " of microbatch " << i;
      EXPECT_EQ(tensor(got).scalar_type(), tensor(want[i]).scalar_type()) << name;
      EXPECT_TRUE(tensor(got).is_contiguous()) << name;
      EXPECT_NE(tensor(got).const_data_ptr(), tensor(want[i]).const_data_ptr()) << name;
    }
    EXPECT_EQ(got.mask_sum, want[i].mask_sum);
    EXPECT_EQ(got.sequence.length, want[i].sequence.length);
    ASSERT_EQ(got.sequence.row_ranges.size(), want[i].sequence.row_ranges.size());
    for (size_t run = 0; run < want[i].sequence.row_ranges.size(); ++run)
      EXPECT_EQ(got.sequence.row_ranges[run].first, want[i].sequence.row_ranges[run].first);
    EXPECT_EQ(got.training, want[i].training);
  }
}

struct StaticBatchesTest : testing::Test {
  StaticBatches held{at::kCPU};
};

TEST_F(StaticBatchesTest, ValuesComeToPlacesThatStay) {
  for (const at::ScalarType mask : {at::kFloat, at::kDouble, at::kBFloat16}) {
    SCOPED_TRACE(c10::toString(mask));
    held.allocate(batches(0, 3, mask));
    expect_holds(held, batches(0, 3, mask));
    const auto before = addresses(held);
    EXPECT_EQ(std::set<const void*>(before.begin(), before.end()).size(), before.size()) << "each has its own place";
    for (int64_t step = 1; step < 4; ++step) {
      auto next = batches(step, 3, mask);
      next[1].mask_sum = -2.5;
      EXPECT_TRUE(held.fits(next));
      held.fill(next);
      expect_holds(held, next);
    }
    EXPECT_EQ(addresses(held), before);
  }
}

TEST_F(StaticBatchesTest, TheCallersTensorsAreHis) {
  auto mine = batches(1);
  held.allocate(mine);
  held.fill(mine);
  for (nn::Microbatch& each : mine) {
    for (const auto& [name, tensor] : nn::kMicrobatchTensors) tensor(each).zero_();
  }
  expect_holds(held, batches(1));
}

TEST_F(StaticBatchesTest, TensorsInAnyOrderOfMemoryAreTaken) {
  held.allocate(batches(1));
  auto next = batches(2);
  for (nn::Microbatch& each : next) {
    each.tokens = each.tokens.t().contiguous().t();
    each.loss_mask = at::cat({each.loss_mask, each.loss_mask}, 1).narrow(1, 0, kLength);
  }
  held.fill(next);
  expect_holds(held, batches(2));
}

TEST_F(StaticBatchesTest, CountersAndStepShareAStorageAndOthersDoNot) {
  held.allocate(batches(1));
  for (const nn::Microbatch& each : held.batches()) {
    EXPECT_TRUE(each.counters.samples.is_alias_of(each.counters.step));
    EXPECT_TRUE(each.counters.samples.is_contiguous());
    EXPECT_EQ(each.counters.step.storage_offset(), kSamples);
    for (const auto& [name, tensor] : nn::kMicrobatchTensors) {
      if (std::string_view(name) != "step" && std::string_view(name) != "sample_counters") {
        EXPECT_FALSE(tensor(each).is_alias_of(each.counters.step)) << name;
      }
    }
  }
  std::vector<nn::Microbatch> without = batches(1);
  for (nn::Microbatch& each : without) each.counters.step = at::Tensor();
  held.allocate(without);
  expect_holds(held, without);
}

TEST_F(StaticBatchesTest, BytesAreThoseOfAllBuffers) {
  held.allocate(batches(1));
  const int64_t matrix = kSamples * kLength;
  const int64_t values = 3 * (4 * matrix * 8 + matrix * 4 + (kSamples + 1) * 8 + 3 * kLength * 8 + (matrix + 1) * 8);
  EXPECT_EQ(held.bytes(), values);
}

TEST_F(StaticBatchesTest, WhatDiffersIsNamedAndNotFilled) {
  held.allocate(batches(1));
  EXPECT_EQ(held.difference(batches(5)), "");
  const auto differs = [&](const std::string& text, const auto& change) {
    auto next = batches(2);
    change(next);
    EXPECT_EQ(held.difference(next), text);
    EXPECT_FALSE(held.fits(next));
    EXPECT_ANY_THROW(held.fill(next)) << text;
  };
  differs("2 microbatches, not 3", [](auto& next) { next.pop_back(); });
  differs("0 microbatches, not 3", [](auto& next) { next.clear(); });
  differs("4 microbatches, not 3", [](auto& next) { next.push_back(batch(2)); });
  for (const auto& [name, tensor] : nn::kMicrobatchTensors) {
    const at::Tensor held_one = tensor(held.batches()[2]);
    const std::string form = base::concat(c10::toString(held_one.scalar_type()), " ", held_one.sizes());
    differs(base::concat("microbatch 2: ", name, ": undefined, not ", form),
            [&, tensor = tensor](auto& next) { tensor(next[2]) = at::Tensor(); });
    const at::Tensor half = tensor(batch(2)).to(at::kHalf), longer = at::cat({tensor(batch(2)), tensor(batch(2))});
    differs(base::concat("microbatch 2: ", name, ": ", "Half ", half.sizes(), ", not ", form),
            [&, tensor = tensor](auto& next) { tensor(next[2]) = half; });
    differs(base::concat("microbatch 2: ", name, ": ", c10::toString(longer.scalar_type()), " ", longer.sizes(),
                         ", not ", form),
            [&, tensor = tensor](auto& next) { tensor(next[2]) = longer; });
  }
  differs("microbatch 1: row_ranges: 0+2 6+3, not 0+2 7+3",
          [](auto& next) { next[1].sequence.row_ranges[1].first = 6; });
  differs("microbatch 1: row_ranges: 0+2 7+4, not 0+2 7+3",
          [](auto& next) { next[1].sequence.row_ranges[1].count = 4; });
  differs("microbatch 1: row_ranges: none, not 0+2 7+3", [](auto& next) { next[1].sequence.row_ranges.clear(); });
  differs("microbatch 0: full_seq_len: 11, not 10", [](auto& next) { next[0].sequence.length = 11; });
  differs("microbatch 0: training: false, not true", [](auto& next) { next[0].training = false; });
  expect_holds(held, batches(1));
  for (const auto& [name, tensor] : nn::kMicrobatchTensors) {
    auto fewer = batches(1);
    for (nn::Microbatch& each : fewer) tensor(each) = at::Tensor();
    StaticBatches other(at::kCPU);
    other.allocate(fewer);
    EXPECT_EQ(other.difference(batches(2)).find(base::concat("microbatch 0: ", name, ": ")), 0u);
  }
}

TEST_F(StaticBatchesTest, ATensorThatIsGoneLeavesNoValuesBehind) {
  held.allocate(batches(1));
  auto without = batches(2);
  for (nn::Microbatch& each : without) each.documents.ids = at::Tensor();
  EXPECT_ANY_THROW(held.fill(without));
  held.allocate(without);
  expect_holds(held, without);
}

TEST_F(StaticBatchesTest, GenerationAndTwoDevicesAreRefused) {
  auto one = batches(1);
  one[1].cache = reinterpret_cast<nn::KvCache*>(&one);
  EXPECT_ANY_THROW(held.allocate(one));
  held.allocate(batches(1));
  EXPECT_EQ(held.difference(one), "microbatch 1: cache: a different KvCache object");
  auto mixed = batches(1);
  mixed[1].tokens = mixed[1].tokens.to(at::kMeta);
  try {
    held.fill(mixed);
    FAIL() << "nothing was thrown";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("on two devices"), std::string::npos) << error.what();
  }
}

TEST_F(StaticBatchesTest, BatchesOfTheMetaDeviceStayThere) {
  StaticBatches on_device(at::kMeta);
  auto on_meta = batches(0);
  for (nn::Microbatch& each : on_meta) {
    for (const auto& [name, tensor] : nn::kMicrobatchTensors) tensor(each) = tensor(each).to(at::kMeta);
  }
  on_device.allocate(on_meta);
  on_device.fill(on_meta);
  EXPECT_TRUE(on_device.batches()[0].tokens.is_meta());
}

}  // namespace
}  // namespace metroplex::test::static_batches_test

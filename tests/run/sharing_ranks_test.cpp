// Parameters shared by several stages and chunks: their owners, gradients and initial values.
#include "step/sharing.h"

#include <ATen/ATen.h>

#include "support/run_ranks.h"
#include "topology/megatron_groups.h"

namespace metroplex::test::sharing_ranks_test {
namespace {

nn::Param holder(const std::string& shared, double value) {
  nn::Param param;
  param.name = shared;
  param.placement.shared = shared;
  param.data = at::full({3}, value, at::kDouble);
  param.main_grad = at::full({3}, 10 * value, at::kDouble);
  param.global_shape = param.local_shape = {3};
  return param;
}

struct HeldMemory {
  int64_t chunk_index;
  const char* name;
  double value;
};
// Four stages of two chunks, chunk c of stage s at position 4 c + s. Parameter `inner` is on two chunks of stage 1
// and one of stage 2; `words` is on the first and the last stage, `own` on stage 3 only.
const std::vector<std::vector<HeldMemory>> kStages = {{{0, "words", 1}, {4, "plain", 50}},
                                                      {{1, "inner", 2}, {5, "inner", 4}},
                                                      {{6, "inner", 8}},
                                                      {{7, "words", 16}, {7, "own", 32}}};

struct Stage {
  explicit Stage(const comm::World& world) {
    const std::vector<HeldMemory>& all = kStages[static_cast<size_t>(world.groups().pp.index())];
    params.reserve(all.size());
    for (const HeldMemory& held : all) {
      params.push_back(holder(held.name, held.value));
      if (std::string(held.name) == "plain") params.back().placement.shared.clear();
      if (chunks.empty() || chunks.back().chunk_index != held.chunk_index) chunks.push_back({held.chunk_index, {}});
      chunks.back().params.push_back(&params.back());
      slices.push_back({&params.back(), 0, 3, params.back().data, params.back().main_grad});
    }
    shared = step::find_shared(world, chunks);
  }
  double value(size_t i) const { return params[i].data[2].item<double>(); }
  double gradient(size_t i) const { return params[i].main_grad[0].item<double>(); }

  std::vector<nn::Param> params;
  std::vector<step::ChunkParams> chunks;
  std::vector<distributed::Shard> slices;
  std::vector<step::SharedParam> shared;
};

template <class Body>
void run_on_four_stages(const Body& body) {
  run_ranks(4, {.pp = 4, .vpp = 2}, [&](const comm::World& world) {
    Stage stage(world);
    body(world.groups().pp.index(), stage);
  });
}

TEST(Sharing, TheFirstHolderInTheOrderOfTheModelOwns) {
  run_on_four_stages([](int index, Stage& stage) {
    std::vector<bool> owns;
    for (const nn::Param& param : stage.params) owns.push_back(param.owner);
    const std::vector<std::vector<bool>> expected = {{true, true}, {true, false}, {false}, {false, true}};
    EXPECT_EQ(owns, expected[static_cast<size_t>(index)]);
  });
}

TEST(Sharing, TheGradientIsTheSumOverAllHoldersOnEachOfThem) {
  run_on_four_stages([](int index, Stage& stage) {
    step::sum_shared_gradients(stage.shared, stage.slices);
    const std::vector<std::vector<double>> expected = {{170, 500}, {140, 140}, {140}, {170, 320}};
    for (size_t i = 0; i < stage.params.size(); ++i)
      EXPECT_EQ(stage.gradient(i), expected[static_cast<size_t>(index)][i]) << stage.params[i].name;
  });
}

TEST(Sharing, ValuesAreThoseOfTheOwner) {
  run_on_four_stages([](int index, Stage& stage) {
    step::share_values(stage.shared, stage.slices);
    const std::vector<std::vector<double>> expected = {{1, 50}, {2, 2}, {2}, {1, 32}};
    for (size_t i = 0; i < stage.params.size(); ++i)
      EXPECT_EQ(stage.value(i), expected[static_cast<size_t>(index)][i]) << stage.params[i].name;
  });
}

TEST(Sharing, TheHoldersOfAParameterMeetInAGroupOfTheirOwn) {
  run_on_four_stages([](int index, Stage& stage) {
    for (const step::SharedParam& shared : stage.shared) {
      const topology::Ranks expected = shared.name == "own"     ? topology::Ranks{3}
                                       : shared.name == "words" ? topology::embedding_ranks({0, 1, 2, 3})
                                                                : topology::Ranks{1, 2};
      EXPECT_EQ(shared.group.ranks(), expected) << shared.name;
      EXPECT_EQ(shared.holders.size(), shared.name == "inner" && index == 1 ? 2u : 1u) << shared.name;
    }
  });
}

TEST(Sharing, WhatNoSliceOfThisRankHoldsIsLeftOut) {
  run_on_four_stages([](int, Stage& stage) {
    step::sum_shared_gradients(stage.shared, {});  // all shards are on other data-parallel ranks: no rank waits
    for (const nn::Param& param : stage.params)
      EXPECT_EQ(param.main_grad[0].item<double>(), 10 * param.data[0].item<double>());
  });
}

}  // namespace
}  // namespace metroplex::test::sharing_ranks_test

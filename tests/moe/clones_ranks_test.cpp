// A layer of experts on several ranks: whose hot experts have clones elsewhere, it is the layer without them in
// outputs and all gradients; and several microbatches are under way in it.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "moe/cloning_dispatcher.h"
#include "moe/experts_layer.h"
#include "moe/values.h"
#include "nn/island.h"
#include "nn/tools.h"
#include "support/run_ranks.h"

namespace metroplex::test::clones_ranks_test {
namespace {

constexpr int64_t kHidden = 12, kSequence = 20, kSamples = 2;

struct Case {
  int ranks, etp;
  int64_t experts;
  int slots;
  std::vector<CloneOf> clones;
  int ep() const { return ranks / etp; }
  std::string text() const { return base::concat(ranks, " ranks, etp ", etp, ", ", slots, " slots"); }
};

// An expert with clones on several ranks, slots that stay empty in front of others, a rank that sends and receives,
// and one without any clone.
const Case kCases[] = {{2, 1, 4, 1, {{0, 1, 0}, {3, 0, 0}}},
                       {2, 1, 4, 2, {{1, 1, 1}}},
                       {4, 1, 8, 2, {{0, 1, 0}, {0, 2, 1}, {0, 3, 0}, {5, 3, 1}, {5, 0, 0}}},
                       {4, 2, 6, 1, {{2, 1, 0}, {4, 0, 0}}}};

struct Form {
  bool grouped = true, bias = false;
  config::TokenDispatcher rows = config::TokenDispatcher::alltoall;
  bool one_island = true, recomputes = false;
  at::ScalarType type = at::kDouble;
};

config::Config config_of(const Case& c, const Form& form) {
  config::Config config;
  config.parallel.expert_tensor_parallel_size = c.etp;
  config.parallel.expert_model_parallel_size = c.ep();
  config::Model& m = config.model;
  m.num_layers = 1;
  m.hidden_size = kHidden;
  m.num_moe_experts = c.experts;
  m.moe_router_topk = 2;
  m.moe_ffn_hidden_size = 10;
  m.gated_linear_unit = true;
  m.activation = config::Activation::silu;
  m.add_bias_linear = form.bias;
  m.moe_grouped_gemm = form.grouped;
  m.hidden_dropout = 0;
  return config;
}

struct Layer {
  Layer(const Case& c, const Form& form, const comm::World& world, bool clones) {
    const config::Config config = config_of(c, form);
    const nn::LayerContext context = layer_context({}, false, form.type);
    moe::ExpertContext experts = moe::expert_context(world, config);
    if (clones) experts.slots = c.slots;
    const moe::ExpertsLayerSpec spec{"layer.mlp", 0, {"layer.norm", kHidden}};
    const auto layer = std::make_shared<moe::ExpertsLayer>(spec, config.model, context, experts);
    if (clones) {
      layer->dispatcher = std::make_unique<CloningDispatcher>(
          moe::DispatcherSpec{experts, context.target, config.model, &layer->experts}, form.rows, c.clones);
    }
    blocks.resize(1);
    moe::add_expert_segments(blocks[0], layer, config.model, context);
    params = nn::params_of(blocks);
    nn::count_uses({&blocks});
    for (nn::Param* param : params) {
      // Biases that are zeros hide what is left out.
      if (param->init != nn::Init::zeros) continue;
      nn::fill(*param, [](int64_t i) { return 0.3 * std::sin(0.7 * static_cast<double>(i) + 0.2); });
    }
    give_main_grad(params);
  }
  nn::Blocks blocks;
  std::vector<nn::Param*> params;
};

std::vector<nn::Island> islands_of(const nn::Block& block, bool one) {
  if (one) return {nn::make_island(block)};
  std::vector<nn::Island> islands;
  for (const auto& segment : block.segments) islands.push_back(nn::make_island({segment.get()}));
  return islands;
}

// Every slot with a clone has rows, and where there is room for some there are none.
void check_values(const nn::Values& x, const Case& c, int ep_rank) {
  if (!x.has(moe::kCloneWeight1)) return;
  const at::Tensor& counts = x.tensor(moe::kRowCounts);
  const int64_t home = c.experts / c.ep();
  ASSERT_EQ(counts.numel(), home + c.slots);
  std::vector<bool> full(static_cast<size_t>(c.slots), false);
  for (const CloneOf& clone : c.clones) {
    if (clone.ep_rank == ep_rank) full[static_cast<size_t>(clone.slot)] = true;
  }
  for (int64_t s = 0; s < c.slots; ++s)
    EXPECT_EQ(counts[home + s].item<int64_t>() > 0, full[static_cast<size_t>(s)]) << s;
}

using Results = std::map<std::string, at::Tensor>;

nn::Microbatch some_batch() {
  nn::Microbatch batch;
  batch.tokens = at::zeros({kSamples, kSequence}, at::kLong);
  batch.loss_mask = at::ones({kSamples, kSequence}, at::kDouble);
  return batch;
}

// Of two microbatches.
Results run(const Layer& layer, const Case& c, const Form& form, const comm::World& world) {
  const std::vector<nn::Island> islands = islands_of(layer.blocks[0], form.one_island);
  Results results;
  for (uint64_t microbatch = 0; microbatch < 2; ++microbatch) {
    const nn::Microbatch batch = some_batch();
    const uint64_t seed = 10 + 2 * static_cast<uint64_t>(world.rank()) + microbatch;
    const nn::Values in(nn::kHiddenStates, sample({kSequence, kSamples, kHidden}, seed, form.type));
    nn::Values x = in;
    std::vector<nn::IslandRun> runs(islands.size());
    if (form.recomputes) {
      for (const nn::Island& island : islands) x = nn::run_forward(island, x, {batch}, nullptr);
      x = in;
    }
    for (size_t i = 0; i < islands.size(); ++i) {
      x = nn::run_forward(islands[i], x, {batch, nullptr, nullptr, form.recomputes}, &runs[i]);
      check_values(x, c, world.rank() / c.etp);
    }
    const std::string number = std::to_string(microbatch);
    results["y " + number] = x.tensor(nn::kHiddenStates);
    nn::Gradients dy{sample({kSequence, kSamples, kHidden}, seed + 77, form.type)};
    for (size_t i = islands.size(); i-- > 0;) dy = nn::run_backward(std::move(runs[i]), dy, {});
    results["dx " + number] = dy.at(0);
  }
  for (const nn::Param* param : layer.params) {
    results[param->name] = param->main_grad;
    EXPECT_EQ(param->uses_of_microbatch, 0) << param->name;
  }
  return results;
}

// Rows of an expert are summed in two places, in at least fp32: the results are those of another order of some 100
// additions. Nothing of a clone is rounded to the type of its weights.
void expect_equal(const Results& got, const Results& expected, const Form& form) {
  ASSERT_EQ(got.size(), expected.size());
  const double rounding = form.type == at::kDouble ? 0x1p-53 : 0x1p-24;
  for (const auto& [name, tensor] : expected)
    EXPECT_LE(relative_difference(got.at(name), tensor), 100 * rounding) << name;
}

void run_case(const Case& c, const std::vector<Form>& forms) {
  const config::Config config = config_of(c, {});
  comm::run_threads(c.ranks, topology::RankGrid(c.ranks, config.parallel), {}, [&](const comm::World& world) {
    for (const Form& form : forms) {
      SCOPED_TRACE(base::concat(c.text(), form.grouped ? ", grouped" : ", one by one", form.bias ? ", bias" : "",
                                ", ", config::text_of(form.rows), form.one_island ? "" : ", islands",
                                form.recomputes ? ", recomputed" : "", ", ", at::toString(form.type)));
      Layer plain(c, form, world, false), cloned(c, form, world, true);
      expect_equal(run(cloned, c, form, world), run(plain, c, form, world), form);
    }
  });
}

TEST(Clones, OfHotExpertsChangeNoOutputAndNoGradient) {
  for (const Case& c : kCases) {
    run_case(c, {{},
                 {.bias = true},
                 {.grouped = false, .bias = true},
                 {.bias = true, .rows = config::TokenDispatcher::allgather},
                 {.rows = config::TokenDispatcher::hierarchical},
                 {.bias = true, .type = at::kBFloat16}});
  }
}

TEST(Clones, PassBordersOfIslandsAndAreSentAgainByARecompute) {
  for (const Case& c : kCases) {
    run_case(c, {{.bias = true, .one_island = false},
                 {.bias = true, .recomputes = true},
                 {.bias = true, .one_island = false, .recomputes = true},
                 {.one_island = false, .type = at::kBFloat16}});
  }
}

// A home reduces its gradient when the clones' have arrived, and not before.
TEST(Clones, AreASecondUseOfTheWeightsAtHome) {
  const Case& c = kCases[0];
  comm::run_threads(c.ranks, topology::RankGrid(c.ranks, config_of(c, {}).parallel), {},
                    [&](const comm::World& world) {
                      for (const bool clones : {false, true}) {
                        Layer layer(c, {}, world, clones);
                        std::map<std::string, int> uses;
                        for (nn::Param* param : layer.params) {
                          const bool expert = param->placement.grid == topology::Grid::expert;
                          EXPECT_EQ(param->uses_per_microbatch, expert && clones ? 2 : 1) << param->name;
                          param->on_use.add("test", [&uses, param] { ++uses[param->name]; });
                        }
                        run(layer, c, {}, world);
                        for (const nn::Param* param : layer.params)
                          EXPECT_EQ(uses[param->name], 2 * param->uses_per_microbatch) << param->name;
                      }
                    });
}

// What the host knows of a dispatch is its microbatch's own until it is combined.
TEST(ExpertsLayer, SendsAMicrobatchBeforeAnotherIsCombined) {
  const Case c{2, 1, 4, 0, {}};
  comm::run_threads(
      c.ranks, topology::RankGrid(c.ranks, config_of(c, {}).parallel), {}, [&](const comm::World& world) {
        const Layer layer(c, {}, world, false);
        const nn::Microbatch batches[] = {some_batch(), some_batch()};
        const auto input = [&](uint64_t i) {
          const auto rank = static_cast<uint64_t>(world.rank());
          return nn::Values(nn::kHiddenStates, sample({kSequence, kSamples, kHidden}, 3 + 2 * rank + i));
        };
        const std::vector<nn::Island> islands = islands_of(layer.blocks[0], false);
        nn::Values apart[] = {input(0), input(1)}, together[] = {input(0), input(1)};
        for (size_t i = 0; i < 2; ++i) {
          for (const nn::Island& island : islands)
            apart[i] = nn::run_forward(island, apart[i], {batches[i]}, nullptr);
        }
        for (const nn::Island& island : islands) {
          for (size_t i = 0; i < 2; ++i) together[i] = nn::run_forward(island, together[i], {batches[i]}, nullptr);
        }
        for (size_t i = 0; i < 2; ++i)
          EXPECT_TRUE(at::equal(together[i].tensor(nn::kHiddenStates), apart[i].tensor(nn::kHiddenStates))) << i;
      });
}

}  // namespace
}  // namespace metroplex::test::clones_ranks_test

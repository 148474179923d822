// Whole stages as graphs under every schedule: same bits as eager stages, and the planned number of graphs.
#include "pipeline/toy.h"
#include "support/run_ranks.h"

namespace metroplex::test::executor_graphs_ranks_test {
namespace {

// The layers of a rank, all of them captured; the last one computes the loss.
struct GraphedToy {
  GraphedToy(int pp, int chunks, int rank) : device(graph::make_graph_device(at::kCPU)) {
    for (int chunk = 0; chunk < chunks; ++chunk) {
      nn::Blocks blocks;
      const int64_t stage = chunk * pp + rank, num_stages = pp * chunks;
      for (int64_t layer = kToyLayers * stage / num_stages; layer < kToyLayers * (stage + 1) / num_stages; ++layer)
        blocks.push_back(one_segment(std::make_unique<ToyLayer>(layer), true));
      regions.push_back(static_cast<int>(blocks.size()));
      stages.push_back(std::make_unique<pipeline::Stage>(std::move(blocks)));
      stages.back()->enable_capture(instances, {{}, true});
      pointers.push_back(stages.back().get());
    }
  }
  std::vector<nn::Param*> params() const {
    std::vector<nn::Param*> all;
    for (const auto& stage : stages) all.insert(all.end(), stage->params().begin(), stage->params().end());
    return all;
  }
  std::unique_ptr<graph::GraphDevice> device;
  std::shared_ptr<pipeline::GraphInstances> instances = std::make_shared<pipeline::GraphInstances>(*device, at::kCPU);
  std::vector<std::unique_ptr<pipeline::Stage>> stages;
  std::vector<pipeline::Stage*> pointers;
  std::vector<int> regions;
};

std::vector<nn::Microbatch> make_round_batches(const ScheduleCase& test_case, int round, bool variable) {
  auto batches = toy_batches(test_case.microbatches, variable);
  for (nn::Microbatch& batch : batches) batch.tokens.add_(round);
  return batches;
}

void expect_equals_eager(const comm::Group& pp, const ScheduleCase& test_case, bool variable) {
  GraphedToy graphed(test_case.pp, test_case.chunks, pp.index());
  const ToyStages plain(test_case.pp, test_case.chunks, pp.index());
  pipeline::Executor with(graphed.pointers, pp), without(plain.pointers(), pp);
  for (const bool forward_only : {false, true}) {
    const plan::PipelineTable table = build_table(test_case, forward_only);
    const plan::GraphPlan plan = plan::plan_graphs(table, pp.index(), plan::alike_layers(graphed.regions));
    const at::Tensor factors = forward_only ? at::Tensor() : toy_factors(test_case.microbatches);
    for (int round = 0; round < 3; ++round) {
      SCOPED_TRACE(testing::Message() << "round " << round << (forward_only ? " of evaluation" : ""));
      const auto batches = make_round_batches(test_case, round, variable);
      const pipeline::BorderShape border = toy_border(batches, variable);
      const auto got = with.run({table, batches, factors, border, &plan}).last;
      const auto want = without.run({table, batches, factors, border}).last;
      ASSERT_EQ(got.size(), want.size());
      for (size_t m = 0; m < got.size(); ++m) EXPECT_TRUE(at::equal(got[m], want[m])) << "microbatch " << m;
      for (size_t i = 0; i < plain.params.size(); ++i)
        EXPECT_TRUE(at::equal(graphed.params()[i]->main_grad, plain.params[i]->main_grad)) << plain.params[i]->name;
    }
    EXPECT_EQ(graphed.instances->sizes(forward_only).graphs, plan.num_graphs());
  }
}

TEST(ExecutorGraphs, StagesHaveTheBitsOfThoseWithoutUnderEverySchedule) {
  for (const ScheduleCase& test_case : std::vector<ScheduleCase>{{"1f1b", 1, 1, 4},
                                                                 {"gpipe", 1, 1, 3},
                                                                 {"1f1b", 2, 1, 5},
                                                                 {"1f1b", 4, 1, 8},
                                                                 {"gpipe", 2, 1, 4},
                                                                 {"interleaved", 2, 2, 4},
                                                                 {"interleaved", 2, 4, 6},
                                                                 {"interleaved", 4, 2, 8, 4, true}}) {
    for (const bool variable : {false, true}) {
      if (variable && test_case.chunks > 1) continue;
      SCOPED_TRACE(testing::Message() << test_case.schedule << " pp " << test_case.pp << " chunks "
                                      << test_case.chunks << " microbatches " << test_case.microbatches
                                      << (variable ? ", of growing length" : ""));
      run_ranks(test_case.pp, {.pp = test_case.pp},
                [&](const comm::World& world) { expect_equals_eager(world.groups().pp, test_case, variable); });
    }
  }
}

}  // namespace
}  // namespace metroplex::test::executor_graphs_ranks_test

// Whole steps on layouts: no diagnostics on any rank, and the same order of collective calls on all ranks.
#include <gtest/gtest.h>

#include "comm/collectives.h"
#include "support/record_tape.h"
#include "support/logged_graphs.h"
#include "verify/graph_check.h"
#include "step/partial_graphs.h"
#include "run/planted_fault.h"
#include "run/small_experts.h"
#include "run/support.h"

namespace metroplex::graph_findings_ranks_test {
namespace {

using tape_check::FindingKind;
using test::TestLayout;

std::vector<verify::GraphCheck> check(const config::Config& config, const TestLayout& layout,
                                      const step::StageBuilder& build = models::build_stage) {
  std::vector<verify::GraphCheck> all(static_cast<size_t>(layout.ranks()));
  test::run_sharded(config, layout, [&](const comm::World& world) {
    all[static_cast<size_t>(world.rank())] = verify::check_graphs(config, world, test::kVocab, {}, build);
  });
  return all;
}

std::vector<tape_check::RankCalls> collect_calls(const std::vector<verify::GraphCheck>& ranks) {
  std::vector<tape_check::RankCalls> calls;
  for (const verify::GraphCheck& rank : ranks) calls.push_back(rank.calls);
  return calls;
}

void expect_clean(const config::Config& config, const TestLayout& layout) {
  const std::vector<verify::GraphCheck> ranks = check(config, layout);
  for (size_t r = 0; r < ranks.size(); ++r) EXPECT_EQ(tape_check::report(ranks[r].findings), "") << "rank " << r;
  EXPECT_EQ(tape_check::report(tape_check::compare_calls(collect_calls(ranks))), "");
  for (const verify::GraphCheck& rank : ranks) EXPECT_GT(rank.calls.calls.size(), 5u);
}

TEST(GraphFindingsRanks, StepsOnLayoutsHaveNone) {
  for (const TestLayout& layout :
       std::vector<TestLayout>{{2, 1, 1, 1, true}, {1, 2, 1, 1, false}, {1, 2, 2, 1, false}, {2, 2, 2, 2, true}}) {
    SCOPED_TRACE(testing::Message() << "tp " << layout.tp << " pp " << layout.pp << " vpp " << layout.vpp << " dp "
                                    << layout.dp << " sp " << layout.sp);
    expect_clean(test::cut(test::small_gpt(), layout), layout);
  }
}

TEST(GraphFindingsRanks, StepsWithEveryShardingHaveNone) {
  for (const char* sharding : {"no_shard", "optim", "optim_grads", "optim_grads_params"}) {
    SCOPED_TRACE(sharding);
    config::Config config = test::small_gpt();
    config.parallel.data_parallel_sharding_strategy = sharding;
    expect_clean(test::cut(config, {1, 1, 1, 2, false}), {1, 1, 1, 2, false});
  }
}

// With overflowing rows, with pages, and with replicas in buffers for the even load.
TEST(GraphFindingsRanks, StepsWithExpertsHaveNone) {
  const std::string parts = "parallel: {expert_model_parallel_size: 2, expert_tensor_parallel_size: 1}\n",
                    buffers =
                        ", moe_router_force_skew: 1.0, moe_token_dispatcher_type: static_buffer,"
                        " moe_expert_rank_capacity_factor: ";
  for (const TestLayout& layout :
       std::vector<TestLayout>{{1, 1, 1, 2, false}, {1, 2, 2, 2, false}, {2, 2, 1, 2, true}}) {
    for (const char* more : {"1.3", "2, moe_paged_stash: true, moe_paged_stash_page_size: 4",
                             "1, moe_enable_echo: true, moe_echo_planner: exact, moe_num_echo_experts: 4"}) {
      SCOPED_TRACE(testing::Message() << "tp " << layout.tp << " pp " << layout.pp << more);
      expect_clean(test::cut(test::small_experts(buffers + more, parts), layout), layout);
    }
  }
}

struct Parts {
  std::vector<tape_check::Finding> findings;
  size_t replays = 0;
};
Parts replayed_parts(const config::Config& config, const comm::World& world) {
  const auto assembly = step::assemble(config, world, test::kVocab);
  const std::unique_ptr<graph::GraphDevice> plain = std::move(assembly->process.graph_device);
  auto logged = std::make_unique<graph::LoggedGraphs>(dynamic_cast<graph::TapeRecorder&>(*plain->recorder()));
  const graph::LoggedGraphs& device = *logged;
  assembly->process.graph_device = std::move(logged);
  assembly->graphs.partial =
      std::make_unique<step::PartialGraphs>(assembly->process, assembly->model, *assembly->process.graph_device);
  for (int64_t step = 0; step < 4; ++step) {
    test::step_at(*assembly, step);
    step::evaluate_step(*assembly, test::make_batches(*assembly, step + 100));
  }
  Parts parts{device.findings(), device.replays()};
  assembly->graphs.partial.reset();
  return parts;
}

// On every rank, with graphs of `modules`.
void expect_no_finding_in_parts(config::Config config, const TestLayout& layout,
                                const std::vector<std::string>& modules) {
  config.train.cuda_graph_impl = config::CudaGraphImpl::local;
  config.train.cuda_graph_modules = modules;
  config.train.cuda_graph_warmup_steps = 1;
  config = test::cut(config, layout);
  std::vector<Parts> ranks(static_cast<size_t>(layout.ranks()));
  test::run_sharded(config, layout, [&](const comm::World& world) {
    ranks[static_cast<size_t>(world.rank())] = replayed_parts(config, world);
  });
  for (const Parts& rank : ranks) {
    EXPECT_EQ(tape_check::report(rank.findings), "");
    EXPECT_GT(rank.replays, 20u);
  }
}

TEST(GraphFindingsRanks, ReplaysOfPartsFindWhatTheirCapturesDid) {
  for (const TestLayout& layout :
       std::vector<TestLayout>{{1, 1, 1, 1, false}, {1, 2, 1, 1, false}, {1, 2, 2, 1, false}, {2, 2, 1, 1, true}}) {
    SCOPED_TRACE(testing::Message() << "tp " << layout.tp << " pp " << layout.pp << " vpp " << layout.vpp);
    expect_no_finding_in_parts(test::small_gpt(), layout, {"attn"});
  }
}

// Graphs of the router and dispatch plan of expert layers, and of whole expert layers, with replicas and with buffers
// for the even load.
TEST(GraphFindingsRanks, ReplaysOfPartsWithExpertsFindWhatTheirCapturesDid) {
  const std::string parts = "parallel: {expert_model_parallel_size: 2, expert_tensor_parallel_size: 1}\n";
  const std::string replicas =
      ", moe_token_dispatcher_type: static_buffer, moe_expert_rank_capacity_factor: 1, moe_enable_echo: true,"
      " moe_echo_planner: exact, moe_num_echo_experts: 4";
  const TestLayout layout{1, 2, 1, 2, false};
  using Modules = std::vector<std::string>;
  for (const auto& [more, modules] : {std::pair{std::string(), Modules{"attn", "moe_router", "moe_preprocess"}},
                                      std::pair{replicas, Modules{"moe"}}, std::pair{replicas, Modules{}}}) {
    expect_no_finding_in_parts(test::small_experts(more, parts), layout, modules);
  }
}

// An all-reduce and an all-gather over tp, in either order. Ranks of one run must agree or the run deadlocks, so the
// test compares the ranks of two runs.
step::StageBuilder speaking(bool sum_first) {
  return test::with_fault([sum_first](const models::ModelContext& context) -> test::Fault {
    return [sum_first, tp = context.tp](const at::Tensor& x) {
      const at::Tensor copy = x.detach().clone();
      if (sum_first) comm::all_reduce(copy, tp);
      const at::Tensor all = comm::all_gather(copy, 0, tp);
      if (!sum_first) comm::all_reduce(copy, tp);
      return x.add(all.sum().mul(0.0));
    };
  });
}

TEST(GraphFindingsRanks, CommunicationInAnotherOrderIsNamedWithBothRanks) {
  const TestLayout layout{2, 1, 1, 1, false};
  const config::Config config = test::cut(test::small_gpt(), layout);
  std::vector<tape_check::RankCalls> one = collect_calls(check(config, layout, speaking(true)));
  const std::vector<tape_check::RankCalls> other = collect_calls(check(config, layout, speaking(false)));
  EXPECT_EQ(tape_check::report(tape_check::compare_calls(one)), "");
  one[1] = other[1];
  test::expect_finding(tape_check::compare_calls(one), FindingKind::other_order, "all_reduce",
                       "forward of decoder.layers.0, planted", "that of rank 1 is all_gather");
}

}  // namespace
}  // namespace metroplex::graph_findings_ranks_test

// Expert loads combined over the ranks: the same on every layout, the trace by source, the table, and no reads or
// messages in steps without output.
#include "run/expert_loads.h"

#include "run/run_lines.h"

#include <numeric>

#include "draw/experts.h"
#include "moe/load_meter.h"
#include "support/call_log.h"
#include "run/metrics.h"
#include "step/run_length.h"
#include "run/support.h"

namespace metroplex::test::expert_loads_ranks_test {
namespace {

files::PosixFileSystem disk;

constexpr int64_t kExperts = 4, kTopk = 2;

struct Lines final : base::Log {
  void info(const std::string&) override {}
  void warn(const std::string& line) override { warnings.push_back(line); }
  std::vector<std::string> warnings;
};

struct Experts {
  TestLayout layout;
  int64_t ep = 1, etp = 1;
};

config::Config make_config(const Experts& cut_to) {
  config::Config config = small_llama();
  config.model.num_moe_experts = kExperts;
  config.model.moe_layer_freq = "[0,1,0,1]";
  config.model.init_method_std = 0.3;  // makes loads uneven
  config.parallel.expert_model_parallel_size = cut_to.ep;
  config.parallel.expert_tensor_parallel_size = cut_to.etp;
  return config;
}

struct LoadReport {
  files::ExpertTrace trace;
  std::vector<std::vector<run::ExpertMetrics>> tables;  // per step; empty: none
};

LoadReport train_on(const Experts& cut_to, const std::string& trace_file) {
  config::Config config = make_config(cut_to);
  config.train.log_experts_interval = 2;
  config.train.expert_trace_file = trace_file;
  config = cut(config, cut_to.layout);
  LoadReport seen;
  run_sharded(config, cut_to.layout, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    Lines lines;
    run::ExpertLoads loads(assembly->process, assembly->model, disk, lines);
    for (int64_t step = 0; step < 4; ++step) {
      step_at(*assembly, step);
      const auto table = loads.after_step(step + 1);
      if (world.rank() == 0) seen.tables.push_back(table);
      else EXPECT_TRUE(table.empty());
    }
    EXPECT_TRUE(lines.warnings.empty());
  });
  if (!trace_file.empty()) seen.trace = files::read_expert_trace(disk, trace_file);
  return seen;
}

std::vector<int64_t> expert_tokens(const files::ExpertTrace& trace, size_t step, size_t layer) {
  std::vector<int64_t> tokens;
  for (int64_t e = 0; e < kExperts; ++e) tokens.push_back(trace.tokens(trace.steps.at(step), layer, e));
  return tokens;
}

const Experts kAlone{{}, 1, 1};
const Experts kCut[] = {
    {{1, 1, 1, 4, false}, 4, 1}, {{2, 1, 1, 2, true}, 2, 1}, {{2, 2, 1, 2, true}, 2, 2}, {{1, 2, 2, 2, false}, 1, 1}};

TEST(ExpertLoads, AreTheSameOnEveryLayout) {
  const Folder folder;
  const LoadReport alone = train_on(kAlone, folder.at("alone"));
  ASSERT_EQ(alone.trace.steps.size(), 4U);
  EXPECT_EQ(alone.trace.head.layers, (std::vector<int64_t>{1, 3}));
  for (size_t step = 0; step < 4; ++step) {
    const auto tokens = expert_tokens(alone.trace, step, 1);
    EXPECT_EQ(std::accumulate(tokens.begin(), tokens.end(), int64_t{0}), 8 * kSequence * kTopk);
    EXPECT_GT(files::imbalance(tokens), 1.05) << "even loads would show nothing";
  }
  int number = 0;
  for (const Experts& layout : kCut) {
    SCOPED_TRACE(testing::Message() << "layout " << number);
    const LoadReport seen = train_on(layout, folder.at(std::to_string(number++)));
    EXPECT_EQ(seen.trace.head.sources(), layout.ep * layout.etp);
    for (size_t step = 0; step < 4; ++step) {
      for (size_t layer = 0; layer < 2; ++layer)
        EXPECT_EQ(expert_tokens(seen.trace, step, layer), expert_tokens(alone.trace, step, layer))
            << step << " " << layer;
      ASSERT_EQ(seen.tables[step].size(), step % 2 == 1 ? 2U : 0U);
    }
    for (size_t layer = 0; layer < 2; ++layer) {
      const run::ExpertMetrics &got = seen.tables[3][layer], &one = alone.tables[3][layer];
      EXPECT_EQ(got.layer, one.layer);
      EXPECT_EQ(got.least, one.least);
      EXPECT_EQ(got.most, one.most);
      EXPECT_EQ(got.experts.together, one.experts.together);
      EXPECT_EQ(got.experts.mean, one.experts.mean);
      EXPECT_EQ(got.experts.worst, one.experts.worst);
    }
  }
}

// Every source has as many tokens as a rank processes in a step.
TEST(ExpertLoads, OfTheSourcesAreTheirOwn) {
  const Folder folder;
  const LoadReport seen = train_on({{1, 1, 1, 4, false}, 4, 1}, folder.at("trace"));
  const files::ExpertTraceStep& step = seen.trace.steps.at(2);
  for (size_t row = 0; row < 2 * 4; ++row) {
    const auto begin = step.tokens.begin() + static_cast<int64_t>(row * kExperts);
    EXPECT_EQ(std::accumulate(begin, begin + kExperts, int64_t{0}), 8 / 4 * kSequence * kTopk);
  }
}

// One expert per rank and one microbatch per step: the load of an expert is capped by the capacity of its rank.
TEST(ExpertLoads, CountRowsThatAStaticBufferDrops) {
  const Folder folder;
  const Experts layout{{1, 1, 1, 4, false}, 4, 1};
  const auto train = [&](bool drops) {
    config::Config config = make_config(layout);
    config.train.micro_batch_size = 2;
    config.train.log_experts_interval = 1;
    config.model.moe_router_force_skew = 1.2;
    if (drops) {
      config.model.moe_token_dispatcher_type = config::TokenDispatcher::static_buffer;
      config.model.moe_expert_rank_capacity_factor = 1;
      config.model.moe_overflow_policy = config::OverflowPolicy::drop;
    }
    config.train.expert_trace_file = folder.at(drops ? "drop" : "all");
    double share = 0;
    run_sharded(cut(config, layout.layout), layout.layout, [&](const comm::World& world) {
      const auto assembly = step::assemble(cut(config, layout.layout), world, kVocab);
      Lines lines;
      run::ExpertLoads loads(assembly->process, assembly->model, disk, lines);
      step_at(*assembly, 0);
      const auto table = loads.after_step(1);
      if (world.rank() == 0) share = table.at(0).dropped;
    });
    return std::pair(files::read_expert_trace(disk, config.train.expert_trace_file), share);
  };
  const auto [all, none] = train(false);
  const auto [kept, share] = train(true);
  const std::vector<int64_t> loads = expert_tokens(all, 0, 0), got = expert_tokens(kept, 0, 0);
  const int64_t room = 8 * kSequence * kTopk / kExperts;
  int64_t dropped = 0;
  for (size_t e = 0; e < loads.size(); ++e) {
    EXPECT_EQ(got[e], std::min(loads[e], room)) << "expert " << e;
    dropped += loads[e] - got[e];
  }
  EXPECT_GT(dropped, 0);
  EXPECT_EQ(kept.steps.at(0).dropped.at(0), dropped);
  EXPECT_EQ(none, 0);
  EXPECT_DOUBLE_EQ(share, static_cast<double>(dropped) / static_cast<double>(8 * kSequence * kTopk));
}

// The table covers two steps. In addition to their total load it shows the imbalance of each step; with ep 4 the load
// of a rank is that of its expert.
TEST(ExpertLoads, TheTableIsOfTheStepsSinceTheLast) {
  const Folder folder;
  const LoadReport seen = train_on({{1, 1, 1, 4, false}, 4, 1}, folder.at("trace"));
  for (size_t layer = 0; layer < 2; ++layer) {
    std::vector<int64_t> both = expert_tokens(seen.trace, 2, layer);
    const auto last = expert_tokens(seen.trace, 3, layer);
    for (size_t e = 0; e < both.size(); ++e) both[e] += last[e];
    const run::ExpertMetrics& m = seen.tables[3][layer];
    EXPECT_EQ(m.most, static_cast<double>(files::quantiles(both).max) / 2);
    EXPECT_EQ(m.p50, static_cast<double>(files::quantiles(both).p50) / 2);
    const files::Imbalance of_steps = files::imbalance_of_steps({expert_tokens(seen.trace, 2, layer), last});
    EXPECT_GT(of_steps.worst, of_steps.together) << "equal steps would not distinguish them";
    EXPECT_EQ(m.steps, 2);
    for (const files::Imbalance& of : {m.experts, m.ranks}) {
      EXPECT_DOUBLE_EQ(of.together, files::imbalance(both));
      EXPECT_DOUBLE_EQ(of.mean, of_steps.mean);
      EXPECT_DOUBLE_EQ(of.worst, of_steps.worst);
    }
    EXPECT_EQ(m.dropped, 0);
    EXPECT_GT(m.dispatch_ms, 0);
    EXPECT_GT(m.combine_ms, 0);
  }
}

// Two groups of two ranks, each with all experts: the most loaded rank belongs to one group.
TEST(ExpertLoads, RanksAreComparedOverAllGroups) {
  const Experts layout{{1, 1, 1, 4, false}, 2, 1};
  config::Config config = make_config(layout);
  config.train.log_experts_interval = 1;
  config = cut(config, layout.layout);
  run_sharded(config, layout.layout, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    Lines lines;
    run::ExpertLoads loads(assembly->process, assembly->model, disk, lines);
    // 10 tokens of each rank go to expert 0 (on the first rank of each group), and another 20 of rank 3.
    assembly->model.experts->meter->layer(1).tokens.select(0, 0).fill_(world.rank() == 3 ? 30 : 10);
    assembly->model.experts->meter->layer(1).dropped.fill_(world.rank() == 0 ? 60 : 0);
    const auto table = loads.after_step(1);
    if (world.rank() != 0) return;
    EXPECT_DOUBLE_EQ(table.at(0).ranks.together, 40 / (60.0 / 4));
    EXPECT_DOUBLE_EQ(table.at(0).ranks.mean, 40 / (60.0 / 4));
    EXPECT_EQ(table.at(0).dropped, 0.5);
    EXPECT_EQ(table.at(1).ranks.worst, 1) << "nothing was counted";
  });
}

// One group of two ep ranks with etp 2: each expert is counted once.
TEST(ExpertLoads, RanksThatShareTheirExpertsAreOne) {
  const Folder folder;
  const LoadReport seen = train_on({{2, 1, 1, 2, true}, 2, 2}, folder.at("trace"));
  for (size_t layer = 0; layer < 2; ++layer) {
    std::vector<std::vector<int64_t>> steps;
    for (const size_t step : {2, 3})
      steps.push_back(files::tokens_of_ranks(expert_tokens(seen.trace, step, layer), 2));
    const files::Imbalance expected = files::imbalance_of_steps(steps);
    EXPECT_GT(expected.together, 1.01);
    EXPECT_DOUBLE_EQ(seen.tables[3][layer].ranks.together, expected.together);
    EXPECT_DOUBLE_EQ(seen.tables[3][layer].ranks.mean, expected.mean);
    EXPECT_DOUBLE_EQ(seen.tables[3][layer].ranks.worst, expected.worst);
  }
}

// Loads that rotate over the ranks, in an interval that exceeds the three steps stored at most.
TEST(ExpertLoads, OfALongIntervalAreAddedUpOnTheWay) {
  const Experts layout{{1, 1, 1, 2, false}, 2, 1};
  config::Config config = make_config(layout);
  config.train.log_experts_interval = 7;
  config = cut(config, layout.layout);
  run_sharded(config, layout.layout, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    step::StageLoads loads(*assembly->model.experts, kExperts, 7, 3 * kExperts);
    for (const int rounds : {1, 2}) {
      for (int64_t step = 0; step < 7; ++step) {
        moe::LoadMeter::Layer& layer = assembly->model.experts->meter->layer(1);
        layer.counts.zero_();
        layer.tokens.select(0, step % kExperts).fill_(5);  // of both ranks
        layer.dispatch_ms = 2 + world.rank();
        loads.add_step();
        EXPECT_EQ(layer.dispatch_ms, 0);
      }
      EXPECT_EQ(loads.steps(), 7);
      const at::Tensor row = loads.sums().select(0, 0);
      const auto of = [&](int64_t i) { return row[i].item<double>(); };
      EXPECT_EQ(of(0), 20) << rounds;  // steps 0 and 4
      EXPECT_EQ(of(3), 10);            // step 3
      EXPECT_EQ(of(kExperts + step::kMaxRankTokens), 40);
      EXPECT_EQ(of(kExperts + step::kExpertsSum), 7 * 4);
      EXPECT_EQ(of(kExperts + step::kMaxExpertsRatio), 4);
      EXPECT_EQ(of(kExperts + step::kRanksSum), 7 * 2);
      EXPECT_EQ(of(kExperts + step::kMaxRanksRatio), 2);
      EXPECT_EQ(of(kExperts + step::kDispatchMs), 7 * 3);
      loads.reset();
    }
  });
}

TEST(ExpertLoads, NothingIsReadOrSentWhereNothingIsDue) {
  const Experts layout{{2, 1, 1, 2, true}, 2, 1};
  config::Config config = make_config(layout);
  config.train.log_experts_interval = 3;
  config = cut(config, layout.layout);
  run_sharded(config, layout.layout, [&](const comm::World& world) {
    CallLog log;
    const comm::World watched = world.recorded(log);
    const auto assembly = step::assemble(config, watched, kVocab);
    Lines lines;
    run::ExpertLoads loads(assembly->process, assembly->model, disk, lines);
    for (int64_t step = 0; step < 3; ++step) {
      step_at(*assembly, step);
      log.calls.clear();
      loads.after_step(step + 1);
      const auto reads = std::count_if(log.calls.begin(), log.calls.end(),
                                       [](const RecordedCall& call) { return call.name == "read_on_host"; });
      if (step < 2) EXPECT_TRUE(log.calls.empty()) << log.calls[0].name;
      else EXPECT_EQ(reads, world.rank() == 0 ? 1 : 0);
    }
  });
}

// Neither evaluation nor the forward of recompute is counted.
TEST(ExpertLoads, CountEveryMicrobatchOfTrainingOnce) {
  config::Config config = make_config(kAlone);
  config.train.log_experts_interval = 1;
  for (const char* granularity : {"none", "full"}) {
    if (std::string(granularity) == "full") {
      config.memory.recompute_granularity = granularity;
      config.memory.recompute_method = "uniform";
      config.memory.recompute_num_layers = 1;
    }
    run_sharded(cut(config, {}), {}, [&](const comm::World& world) {
      const auto assembly = step::assemble(cut(config, {}), world, kVocab);
      step_at(*assembly, 0);
      auto batches = make_batches(*assembly, 1);
      for (nn::Microbatch& batch : batches) batch.training = false;
      step::evaluate_step(*assembly, batches);
      ASSERT_EQ(assembly->model.experts->meter->layers().size(), 2U);
      for (const auto& [number, layer] : assembly->model.experts->meter->layers())
        EXPECT_EQ(layer.tokens.sum().item<int64_t>(), 8 * kSequence * kTopk) << granularity;
    });
  }
}

TEST(ExpertLoads, OfAModelThatNobodyAskedAboutAreNotCounted) {
  const config::Config config = cut(make_config(kAlone), {});
  EXPECT_FALSE(step::needs_expert_loads(config));
  run_sharded(config, {}, [&](const comm::World& world) {
    EXPECT_EQ(step::assemble(config, world, kVocab)->model.experts->meter, nullptr);
    config::Config counted = config;
    counted.train.log_experts_interval = 1;
    EXPECT_NE(step::assemble(counted, world, kVocab)->model.experts->meter, nullptr);
    EXPECT_EQ(step::assemble(counted, world, kVocab, /*forward_only=*/true)->model.experts->meter, nullptr);
  });
}

TEST(ExpertLoads, OfARunThatNothingKeepsEvenAreWarnedOf) {
  config::Model m = make_config(kAlone).model;
  EXPECT_NE(run::balance_warning(m).find("model.moe_aux_loss_coeff (0.01 is usual)"), std::string::npos);
  const auto quiet = [&m](auto change) {
    config::Model with = m;
    change(with);
    return run::balance_warning(with).empty();
  };
  EXPECT_TRUE(quiet([](config::Model& with) { with.moe_aux_loss_coeff = "0.01"; }));
  EXPECT_TRUE(quiet([](config::Model& with) { with.moe_router_enable_expert_bias = true; }));
  EXPECT_TRUE(quiet([](config::Model& with) { with.moe_router_load_balancing_type = "sinkhorn"; }));
  EXPECT_TRUE(quiet([](config::Model& with) { with.moe_router_force_load_balancing = true; }));
  EXPECT_TRUE(quiet([](config::Model& with) { with.num_moe_experts = 0; }));
  EXPECT_FALSE(quiet([](config::Model& with) { with.moe_z_loss_coeff = 0.001; }))
      << "it keeps logits small, not loads even";
}

// As in Megatron-LM: without the coefficient, a mean over layers.
TEST(ExpertTerms, AreShownWithoutCoefficientsAsMeansOverLayers) {
  config::Config config = make_config(kAlone);
  config.model.moe_router_load_balancing_type = "aux_loss,seq_aux_loss";
  config.model.moe_aux_loss_coeff = "0.1,0.5";
  config.model.moe_z_loss_coeff = 0.01;
  const auto shown = run::normalized_terms(
      config.model, {{"load_balancing_loss", 0.2}, {"seq_load_balancing_loss", 1}, {"z_loss", 0.04}, {"other", 3}});
  EXPECT_DOUBLE_EQ(shown.at("load_balancing_loss"), 1);
  EXPECT_DOUBLE_EQ(shown.at("seq_load_balancing_loss"), 1);
  EXPECT_DOUBLE_EQ(shown.at("z_loss"), 2);
  EXPECT_DOUBLE_EQ(shown.at("other"), 3);
}

}  // namespace
}  // namespace metroplex::test::expert_loads_ranks_test

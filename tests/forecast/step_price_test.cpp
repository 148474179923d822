// Traced steps of graphs of modules.
#include "forecast/step_price.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "config/load.h"
#include "config/validate.h"
#include "forecast/fit.h"
#include "forecast/stage_traces.h"

namespace metroplex::test::step_price_test {
namespace {

using replay::IslandTrace;

config::Config small_config(int64_t layers, int64_t batch) {
  config::Config config;
  config.model.num_layers = layers;
  config.model.hidden_size = 16;
  config.model.num_attention_heads = 2;
  config.model.vocab_size = 300;
  config.train.train_iters = 4;
  config.train.seq_length = 8;
  config.train.global_batch_size = batch;
  return config;
}

std::vector<IslandTrace> forward_regions(const config::Config& config) {
  const forecast::TracedRun run =
      forecast::trace_run({.config = config::resolved(config, 1), .world_size = 1, .vocab_size = 300});
  return run.traces[0].find(plan::ActionKind::forward, 0, replay::Position::first).regions;
}

TEST(TracedRun, MarksTheCapturedRegions) {
  config::Config config = small_config(2, 1);
  for (const IslandTrace& region : forward_regions(config)) EXPECT_FALSE(region.captured);
  config.train.cuda_graph_impl = config::CudaGraphImpl::transformer_engine;
  config.train.cuda_graph_modules = {"attn"};
  int attention = 0, other = 0;
  for (const IslandTrace& region : forward_regions(config)) {
    if (region.operations.empty() || region.block < 0) continue;
    const bool is_attention = region.segment == 0 && region.block > 0 && region.block <= 2;
    EXPECT_EQ(region.captured, is_attention) << region.block << " " << region.segment;
    ++(region.captured ? attention : other);
  }
  EXPECT_EQ(attention, 2);
  EXPECT_EQ(other, 2 + 2);  // two MLPs, embedding, head
}

TEST(StageForm, DiffersBetweenStagesWithOtherAttention) {
  config::Config config = small_config(4, 4);
  config.parallel.pipeline_model_parallel_size = 4;
  EXPECT_EQ(forecast::stage_form(config, 1), forecast::stage_form(config, 2));
  config.model.experimental_attention_variant = config::AttentionVariant::gated_delta_net;
  config.model.linear_attention_freq = "[1,1,0,0]";
  EXPECT_NE(forecast::stage_form(config, 1), forecast::stage_form(config, 2));
}

// Names and dtypes of the products and attention operators of a step on a GPU.
std::set<std::string> operators_on(int capability, const std::vector<std::string>& settings) {
  const config::Config config = config::parse(config::dump(small_config(2, 1)), settings);
  forecast::FitRequest request{config::resolved(config, 1), 1, 300, {}};
  request.domains.gpu = true, request.capability = capability;
  const forecast::TracedRun run = forecast::trace_run(request.of_rank(0, 1));
  std::set<std::string> names;
  for (const replay::TracedAction& action : run.traces[0].actions) {
    for (const IslandTrace& region : action.regions) {
      for (const replay::TraceOperation& one : region.operations)
        if (one.flops > 0) names.insert(one.name + " " + one.dtype);
    }
  }
  return names;
}

TEST(TracedRun, HasTheOperatorsOfTheMachinesGpu) {
  const std::vector<std::string> latent{"precision.params_dtype=bf16",
                                        "model.position_embedding_type=rope",
                                        "model.multi_latent_attention=true",
                                        "model.kv_lora_rank=16",
                                        "model.qk_head_dim=16",
                                        "model.qk_pos_emb_head_dim=8",
                                        "model.v_head_dim=16"};
  EXPECT_TRUE(operators_on(90, latent).contains("attention_cudnn bf16"));
  EXPECT_FALSE(operators_on(90, latent).contains("attention_bmm bf16"));
  EXPECT_TRUE(operators_on(80, latent).contains("attention_bmm bf16"));
  const std::vector<std::string> codes{"precision.params_dtype=bf16",    "precision.fp4_format=e2m1",
                                       "precision.fp8_products=library", "model.hidden_size=64",
                                       "model.ffn_hidden_size=128",      "train.seq_length=32"};
  EXPECT_TRUE(operators_on(100, codes).contains("scaled_mm fp4"));
}

// The stages wait for each other in the sums of all families, also if one has no parameter of a family, or none.
TEST(TracedRun, SumsFamiliesOfAllStages) {
  for (const char* layout : {"Ett|ttL", "E||ttttL"}) {
    config::Config config = small_config(4, 4);
    config.model.num_moe_experts = 4;
    config.model.moe_router_topk = 2;
    config.model.moe_layer_freq = "[0,0,1,1]";
    config.parallel.expert_model_parallel_size = 2;
    config.parallel.pipeline_model_parallel_layout = layout;
    const int stages = static_cast<int>(std::count(layout, layout + std::strlen(layout), '|')) + 1;
    config.parallel.pipeline_model_parallel_size = stages;
    const int ranks = 2 * stages;
    const replay::StepTime time =
        forecast::price_step({.config = config::resolved(config, ranks), .world_size = ranks, .vocab_size = 300},
                             price::find_machine("cpu"));
    ASSERT_EQ(time.ranks.size(), static_cast<size_t>(stages));
    for (const replay::RankTimes& rank : time.ranks)
      EXPECT_NEAR(rank.total(), time.seconds, 1.2e-13 * time.seconds);  // sums of at most 1,000 parts: 1,000 x 2^-53
  }
}

// Two layers with experts on two ranks of each stage.
forecast::TracedRun trace_experts(std::vector<std::string> settings, int stages = 1) {
  settings.insert(settings.end(),
                  {"model.num_moe_experts=4", "model.moe_router_topk=2", "parallel.expert_model_parallel_size=2"});
  config::Config config = config::parse(config::dump(small_config(2 * stages, 16)), settings);
  config.parallel.pipeline_model_parallel_size = stages;
  return forecast::trace_run(
      {.config = config::resolved(config, 2 * stages), .world_size = 2 * stages, .vocab_size = 300});
}

// A layer exchanges rows, their probabilities and results. Its routing is gathered without a turn.
TEST(TracedRun, MarksTheTurnsOfExchanges) {
  const std::vector<std::string> recomputed{"memory.recompute_granularity=full", "memory.recompute_method=uniform",
                                            "memory.recompute_num_layers=1"};
  for (const char* dispatcher : {"alltoall", "allgather", "static_buffer"}) {
    for (const bool recomputes : {false, true}) {
      std::vector<std::string> settings = recomputes ? recomputed : std::vector<std::string>();
      settings.push_back(std::string("model.moe_token_dispatcher_type=") + dispatcher);
      const forecast::TracedRun run = trace_experts(settings);
      for (const replay::TracedAction& action : run.traces[0].actions) {
        int turns = 0, waits = 0;
        for (const IslandTrace& region : action.regions) {
          for (const replay::TraceOperation& one : region.operations) {
            turns += one.in_turn;
            waits += one.name == "wait" && one.group == "etp-ep";
            EXPECT_TRUE(!one.in_turn || (one.name == "wait" && one.group == "etp-ep"));
          }
        }
        const int forwards = 2 * (action.kind == plan::ActionKind::forward || recomputes),
                  backwards = 2 * (action.kind == plan::ActionKind::backward);
        EXPECT_EQ(turns, 3 * (forwards + backwards)) << dispatcher << recomputes;
        EXPECT_EQ(waits - turns, forwards) << dispatcher << recomputes;
      }
    }
  }
}

// Pairs have the operators and collectives of single passes; only exposed exchanges differ.
TEST(PriceStep, HidesExchangesOfPairs) {
  const price::Machine machine = price::find_machine("h100");
  for (const std::string schedule : {"auto", "dualpipe_v"}) {
    const int stages = schedule == "auto" ? 1 : 2;
    std::vector<std::string> settings{"parallel.pipeline_schedule=" + schedule};
    if (stages > 1) settings.emplace_back("parallel.virtual_pipeline_model_parallel_size=2");
    const forecast::TracedRun alone = trace_experts(settings, stages);
    settings.emplace_back("parallel.overlap_moe_expert_parallel_comm=true");
    const forecast::TracedRun paired = trace_experts(settings, stages);
    const replay::StepTime serial = replay::simulate_step({machine, alone.table, alone.traces}),
                           hidden = replay::simulate_step({machine, paired.table, paired.traces});
    EXPECT_LT(hidden.seconds, serial.seconds) << schedule;
    for (int rank = 0; rank < stages; ++rank) {
      const auto index = static_cast<size_t>(rank);
      const double rounding = 1000 * 0x1p-53 * serial.seconds;  // sums of at most 1,000 parts
      EXPECT_NEAR(hidden.ranks[index].compute(), serial.ranks[index].compute(), rounding);
      EXPECT_NEAR(hidden.ranks[index].total(), hidden.seconds, rounding);
      EXPECT_LT(hidden.ranks[index].exposed.at("experts"), 0.9 * serial.ranks[index].exposed.at("experts"));
      EXPECT_EQ(replay::count_collectives(paired.traces[index], paired.table, rank),
                replay::count_collectives(alone.traces[index], alone.table, rank));
    }
  }
}

struct Traffic {
  int64_t bytes = 0, calls = 0;  // of the operation
  int64_t sums = 0, summed = 0;  // kernels that sum received shards, and their bytes
  int64_t norm = 0;              // bytes that gradient_sums reads
};

Traffic traced_traffic(const config::Config& config, const std::string& operation) {
  const forecast::TracedRun run =
      forecast::trace_run({.config = config::resolved(config, 2), .world_size = 2, .vocab_size = 300});
  Traffic traffic;
  const auto add = [&](const std::vector<IslandTrace>& regions) {
    for (const IslandTrace& region : regions) {
      for (const replay::TraceOperation& one : region.operations) {
        if (one.name == operation && one.group == "dp-cp") traffic.bytes += one.bytes, ++traffic.calls;
        if (one.name == "sum_shards") ++traffic.sums, traffic.summed += one.bytes;
        if (one.name == "gradient_sums") traffic.norm += one.bytes;
      }
    }
  };
  for (const replay::TracedAction& action : run.traces[0].actions) add(action.regions);
  add(run.traces[0].after);
  return traffic;
}

// The exchange of the shards and their sums are part of the predicted step: one kernel for each exchange. The norm
// reads the sums of the kernel instead of gradients.
TEST(TracedRun, CountsSumsOfHalfGradients) {
  for (const char* strategy : {"optim", "optim_grads", "optim_grads_params"}) {
    config::Config config = small_config(2, 2);
    config.precision.params_dtype = "bf16";
    config.precision.main_grads_dtype = "params";
    config.parallel.data_parallel_sharding_strategy = strategy;
    const Traffic rounded = traced_traffic(config, "reduce_scatter");
    config.parallel.reduce_scatter_with_fp32_accumulation = true;
    const Traffic summed = traced_traffic(config, "all_to_all");
    EXPECT_GT(rounded.bytes, 0) << strategy;
    EXPECT_EQ(summed.bytes, rounded.bytes) << strategy;
    EXPECT_EQ(summed.calls, rounded.calls) << strategy;
    EXPECT_EQ(summed.sums, summed.calls) << strategy;
    EXPECT_EQ(rounded.sums, 0) << strategy;
    EXPECT_GE(summed.summed, summed.bytes) << strategy;
    EXPECT_LT(summed.norm, rounded.norm) << strategy;
  }
}

}  // namespace
}  // namespace metroplex::test::step_price_test

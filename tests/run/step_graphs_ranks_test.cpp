// The whole step as one graph on the CPU: same bits as eager steps, on every layout.
#include <gtest/gtest.h>

#include "support/without_onednn.h"
#include "forecast/graph_report.h"
#include "run/memory_cases.h"
#include "run/memory_watch.h"
#include "run/small_experts.h"
#include "step/step_graphs.h"
#include "run/support.h"

namespace metroplex::step_graphs_ranks_test {
namespace {

using test::TestLayout;

struct RunResult {
  std::vector<double> losses, norms;
  std::vector<double> evaluated;
  std::map<std::string, at::Tensor> state;  // rank 0's
};

RunResult train_steps(const config::Config& config, const TestLayout& layout, int64_t steps) {
  RunResult ran;
  test::run_sharded(config, layout, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, test::kVocab);
    RunResult mine;
    for (int64_t step = 0; step < steps; ++step) {
      const step::StepOutcome outcome = test::step_at(*assembly, step);
      mine.losses.push_back(outcome.loss);
      mine.norms.push_back(outcome.grad_norm);
      if (step % 2 == 1)
        mine.evaluated.push_back(
            step::evaluate_step(*assembly, test::make_sharded_batches(*assembly, step + 100)).mean());
    }
    mine.state = test::whole_state(*assembly);
    if (world.rank() == 0) ran = std::move(mine);
  });
  return ran;
}

void expect_same_bits(const RunResult& graph, const RunResult& eager) {
  EXPECT_EQ(graph.losses, eager.losses);
  EXPECT_EQ(graph.norms, eager.norms);
  EXPECT_EQ(graph.evaluated, eager.evaluated);
  ASSERT_EQ(graph.state.size(), eager.state.size());
  for (const auto& [name, values] : eager.state) EXPECT_TRUE(at::equal(graph.state.at(name), values)) << name;
}

config::Config with_graphs(config::Config config) {
  config.train.cuda_graph_impl = config::CudaGraphImpl::full_iteration;
  config.train.cuda_graph_warmup_steps = 2;
  return config;
}

TEST(StepGraphs, OneRankHasTheBitsOfStepsWithoutThem) {
  for (const config::Config& base : {test::small_gpt(), test::small_hybrid()}) {
    const config::Config config = test::cut(base, {});
    expect_same_bits(train_steps(with_graphs(config), {}, 8), train_steps(config, {}, 8));
  }
}

TEST(StepGraphs, LayoutsHaveTheBitsOfStepsWithoutThem) {
  for (const TestLayout& layout : std::vector<TestLayout>{{2, 1, 1, 1, false},
                                                          {2, 1, 1, 1, true},
                                                          {1, 2, 1, 1, false},
                                                          {1, 2, 2, 1, false},
                                                          {1, 1, 1, 2, false},
                                                          {2, 2, 2, 2, true}}) {
    for (const char* sharding : {"no_shard", "optim", "optim_grads", "optim_grads_params"}) {
      SCOPED_TRACE(::testing::Message() << layout.tp << layout.pp << layout.vpp << layout.dp << layout.sp
                                        << sharding);
      if (layout.dp == 1 && std::string(sharding) != "no_shard") continue;
      config::Config config = test::small_gpt();
      config.parallel.data_parallel_sharding_strategy = sharding;
      config = test::cut(config, layout);
      expect_same_bits(train_steps(with_graphs(config), layout, 6), train_steps(config, layout, 6));
    }
  }
}

// The norm reads sums that the same replay computes.
TEST(StepGraphs, Fp32SumsHaveTheBitsOfStepsWithoutThem) {
  for (const char* sharding : {"optim", "optim_grads", "optim_grads_params"}) {
    SCOPED_TRACE(sharding);
    const TestLayout layout{2, 1, 1, 2, true};
    config::Config config = test::small_gpt();
    config.precision.params_dtype = "bf16";
    config.precision.main_grads_dtype = "params";
    config.parallel.data_parallel_sharding_strategy = sharding;
    config.parallel.reduce_scatter_with_fp32_accumulation = true;
    config = test::cut(config, layout);
    expect_same_bits(train_steps(with_graphs(config), layout, 6), train_steps(config, layout, 6));
  }
}

TEST(StepGraphs, SchedulesWithWeightActionsHaveTheBitsOfStepsWithoutThem) {
  for (const std::string schedule : {"zb_h1", "zb_h2", "zb_v", "dualpipe_v", "searched"}) {
    SCOPED_TRACE(schedule);
    const int64_t chunks = config::is_v_shaped(config::Choice<config::Schedule>(schedule), 1) ? 2 : 1;
    const TestLayout layout{1, 2, chunks, 2, false};
    config::Config config = test::small_gpt();
    config.parallel.pipeline_schedule = config::Choice<config::Schedule>(schedule);
    config.parallel.data_parallel_sharding_strategy = "optim_grads";
    config = test::cut(config, layout);
    expect_same_bits(train_steps(with_graphs(config), layout, 6), train_steps(config, layout, 6));
  }
}

TEST(StepGraphs, ContextParallelRanksHaveTheBitsOfStepsWithoutThem) {
  for (const char* exchange : {"p2p", "all_gather", "a2a", "a2a+p2p"}) {
    for (const TestLayout& layout : std::vector<TestLayout>{{1, 1, 1, 4, false}, {2, 2, 1, 2, true}}) {
      SCOPED_TRACE(::testing::Message() << exchange << " tp " << layout.tp);
      config::Config config = test::small_gpt();
      config.parallel.context_parallel_size = layout.dp;
      config.parallel.cp_comm_type = exchange;
      if (std::string(exchange) == "a2a+p2p")
        config.parallel.hierarchical_context_parallel_sizes = layout.dp == 4 ? "2,2" : "1,2";
      config = test::cut(config, layout);
      const RunResult graph = train_steps(with_graphs(config), layout, 6);
      expect_same_bits(graph, train_steps(config, layout, 6));
    }
  }
}

TEST(StepGraphs, GatedDeltaNetsHaveTheBitsOfStepsWithoutThem) {
  for (const int64_t cp : {1, 2}) {
    for (const TestLayout& layout : std::vector<TestLayout>{{1, 1, 1, 2, false}, {2, 2, 1, 2, true}}) {
      SCOPED_TRACE(::testing::Message() << "cp " << cp << " tp " << layout.tp);
      config::Config config = test::small_llama();
      config.model.experimental_attention_variant = config::AttentionVariant::gated_delta_net;
      config.model.linear_attention_freq = "2", config.model.linear_num_key_heads = 4;
      config.model.linear_num_value_heads = 8, config.model.linear_key_head_dim = 5;
      config.model.linear_value_head_dim = 6, config.model.attention_output_gate = true;
      config.parallel.context_parallel_size = cp;
      config = test::cut(config, layout);
      expect_same_bits(train_steps(with_graphs(config), layout, 4), train_steps(config, layout, 4));
    }
  }
}

TEST(StepGraphs, LightningAttentionHasTheBitsOfStepsWithoutThem) {
  for (const int64_t cp : {1, 2}) {
    SCOPED_TRACE(::testing::Message() << "cp " << cp);
    const TestLayout layout{1, 2, 1, 2, false};
    config::Config config = test::small_llama();
    config.model.experimental_attention_variant = config::AttentionVariant::lightning_attention;
    config.model.linear_attention_freq = "2", config.model.lightning_chunk_size = 3;
    config.model.apply_residual_connection_post_layernorm = true, config.model.residual_stream_multiplier = 1.7;
    config.parallel.context_parallel_size = cp;
    config = test::cut(config, layout);
    expect_same_bits(train_steps(with_graphs(config), layout, 4), train_steps(config, layout, 4));
  }
}

// The peak of the meter in an eager step equals the size of the pool of its graph.
TEST(StepGraphs, ThePoolHoldsWhatIsPredicted) {
  const test::WithoutOneDnn without;
  int compared = 0;
  for (const test::MemoryCase& test_case : test::peak_cases()) {
    const config::Config config = with_graphs(test::peak_config(test_case));
    if (config.memory.offload_activations == config::Offload::file) continue;
    ++compared;
    run_sharded(config, test_case.cut, [&](const comm::World& world) {
      SCOPED_TRACE(test_case.name + " rank " + std::to_string(world.rank()));
      const auto assembly = step::assemble(config, world, test_case.vocab);
      for (int64_t step = 0; step < 4; ++step) test::step_at(*assembly, step);
      const auto want = forecast::predict_memory({config, world.size(), world.rank(), test_case.vocab});
      const graph::GraphPool::Bytes pool = assembly->graphs.step->sizes().pool;
      EXPECT_NEAR(pool.peak, forecast::step_bytes(want), test::kScalars);
      EXPECT_GE(pool.reserved, pool.peak);
    });
  }
  EXPECT_EQ(compared, 99);
}

TEST(StepGraphs, AnotherNumberOrFormOfMicrobatchesIsCapturedAgain) {
  const config::Config config = test::cut(test::small_gpt(), {});
  const auto trained = [&](const config::Config& how) {
    std::vector<double> losses;
    test::run_sharded(how, {}, [&](const comm::World& world) {
      const auto assembly = step::assemble(how, world, test::kVocab);
      int64_t samples = 0;
      for (int64_t step = 0; step < 12; ++step) {
        std::vector<nn::Microbatch> batches = test::make_batches(*assembly, step);
        if (step % 6 > 3) batches.resize(3);
        if (step % 6 == 3) {
          for (nn::Microbatch& batch : batches) batch.loss_mask = batch.loss_mask.to(at::kFloat);
        }
        losses.push_back(step::train_step(*assembly, {batches, step + 1, samples, false, {}}).loss);
        losses.push_back(step::evaluate_step(*assembly, {batches.front()}).mean());
        samples += static_cast<int64_t>(batches.size());
      }
      EXPECT_EQ(assembly->graphs.step != nullptr, how.train.captures_iteration());
    });
    return losses;
  };
  EXPECT_EQ(trained(with_graphs(config)), trained(config));
}

config::Config experts_with_terms() {
  config::Config config = config::parse(
      "model: {family: gpt, num_layers: 2, hidden_size: 16, num_attention_heads: 4, ffn_hidden_size: 16,"
      " vocab_size: 50, make_vocab_size_divisible_by: 8, num_moe_experts: 4, moe_router_topk: 2,"
      " moe_expert_capacity_factor: 2.0, moe_pad_expert_input_to_capacity: true,"
      " moe_router_load_balancing_type: \"aux_loss,seq_aux_loss\", moe_aux_loss_coeff: \"0.02,0.01\","
      " moe_z_loss_coeff: 0.001}\n");
  const config::Config base = test::small_gpt();
  config.train = base.train;
  config.optim = base.optim;
  config.precision = base.precision;
  config.data = base.data;
  return config;
}

// The number of expert rows changes from step to step; the graph has capacity for the maximum.
TEST(StepGraphs, ExpertsWhoseRowsTheHostDoesNotCountHaveTheBitsOfStepsWithoutThem) {
  for (const double capacity : {0.0, 1.0}) {
    for (const auto& [dispatcher, dp] :
         {std::pair{"local", int64_t{1}}, std::pair{"alltoall", int64_t{1}}, std::pair{"allgather", int64_t{2}}}) {
      SCOPED_TRACE(::testing::Message() << dispatcher << " capacity " << capacity);
      const TestLayout layout{1, 1, 1, dp, false};
      config::Config config = experts_with_terms();
      config.model.moe_token_dispatcher_type = dispatcher;
      config.model.moe_expert_capacity_factor = capacity;
      config.model.moe_pad_expert_input_to_capacity = false;
      config.parallel.expert_model_parallel_size = dp;
      config = test::cut(config, layout);
      expect_same_bits(train_steps(with_graphs(config), layout, 6), train_steps(config, layout, 6));
    }
  }
}

// Passes in turns have the bits of passes one after the other, and so have their graphs.
TEST(StepGraphs, PassesInTurnsHaveTheBitsOfStepsWithoutThem) {
  for (const char* dispatcher : {"allgather", "static_buffer"}) {
    for (const int64_t pp : {1, 2}) {
      SCOPED_TRACE(::testing::Message() << dispatcher << " pp " << pp);
      const TestLayout layout{1, pp, 1, 2, false};
      config::Config config = experts_with_terms();
      config.model.moe_token_dispatcher_type = dispatcher;
      config.model.moe_expert_capacity_factor = 0;
      config.model.moe_pad_expert_input_to_capacity = false;
      if (std::string(dispatcher) == "static_buffer") config.model.moe_expert_rank_capacity_factor = 2;
      config.parallel.expert_model_parallel_size = 2;
      const RunResult one_by_one = train_steps(test::cut(config, layout), layout, 6);
      config.parallel.overlap_moe_expert_parallel_comm = true;
      config = test::cut(config, layout);
      expect_same_bits(train_steps(config, layout, 6), one_by_one);
      expect_same_bits(train_steps(with_graphs(config), layout, 6), one_by_one);
    }
  }
}

// With a batch size that ramps up.
void expect_same_terms(const config::Config& model, const TestLayout& layout) {
  const config::Config config = test::cut(model, layout);
  const auto trained = [&](const config::Config& how) {
    std::vector<std::map<std::string, double>> told;
    test::run_sharded(how, layout, [&](const comm::World& world) {
      const auto assembly = step::assemble(how, world, test::kVocab);
      std::vector<std::map<std::string, double>> mine;
      int64_t samples = 0;
      for (int64_t step = 0; step < 16; ++step) {
        std::vector<nn::Microbatch> batches = test::make_batches(*assembly, step);
        batches.resize(static_cast<size_t>(2 + step / 4 * 2));
        const step::StepOutcome outcome = step::train_step(*assembly, {batches, step + 1, samples, false, {}});
        mine.push_back(outcome.terms);
        mine.back()["loss"] = outcome.loss;
        mine.back()["ran again"] = outcome.repeated.empty() ? 0 : 1;
        samples += static_cast<int64_t>(batches.size()) * layout.dp;
      }
      EXPECT_EQ(assembly->graphs.step != nullptr, how.train.captures_iteration());
      if (world.rank() == 0) told = std::move(mine);
    });
    return told;
  };
  const auto graphs = trained(with_graphs(config)), eager = trained(config);
  EXPECT_GE(eager.front().size(), 4u);
  EXPECT_EQ(graphs, eager);
}

TEST(StepGraphs, LossTermsOfAGrowingBatchAreThoseOfStepsWithoutGraphs) {
  expect_same_terms(experts_with_terms(), {});
  config::Config ranks = test::small_experts(
      ", moe_router_force_skew: 1.0, moe_token_dispatcher_type: static_buffer, moe_expert_rank_capacity_factor: 1.3",
      "parallel: {expert_model_parallel_size: 2}\n");
  ranks.train.global_batch_size = 16;
  expect_same_terms(ranks, {1, 2, 1, 2, false});
}

// The graph excludes the ZeRO gathers that the eager step leaves in flight.
TEST(StepGraphs, AStepThatRunsAsItIsLeavesTheCaptureAsItWouldBe) {
  const TestLayout layout{1, 1, 1, 2, false};
  for (const char* sharding : {"optim", "optim_grads", "optim_grads_params"}) {
    config::Config config = test::small_gpt();
    config.parallel.data_parallel_sharding_strategy = sharding;
    config.parallel.overlap_param_gather = true;
    config = with_graphs(test::cut(config, layout));
    config.train.cuda_graph_warmup_steps = 1;
    int64_t operations[2] = {0, 0};
    for (const bool between : {false, true}) {
      test::run_sharded(config, layout, [&](const comm::World& world) {
        const auto assembly = step::assemble(config, world, test::kVocab);
        test::step_at(*assembly, 0);
        step::StepInput input{test::make_batches(*assembly, 1), 2, config.train.global_batch_size, false, {}};
        input.eager = true;
        if (between) step::train_step(*assembly, input);
        test::step_at(*assembly, 2);
        if (world.rank() == 0) operations[between ? 1 : 0] = assembly->graphs.step->sizes().training.nodes;
      });
    }
    EXPECT_GT(operations[0], 100) << sharding;
    EXPECT_EQ(operations[1], operations[0]) << sharding;
  }
}

TEST(StepGraphs, TrainingAndEvaluationAreAGraphEach) {
  const config::Config dense = test::small_gpt(), experts = test::small_experts(
                                                      ", moe_token_dispatcher_type: static_buffer,"
                                                      " moe_expert_rank_capacity_factor: 2",
                                                      "parallel: {expert_model_parallel_size: 2}\n");
  for (const auto& [model, layout, microbatches] :
       {std::tuple{dense, TestLayout{1, 2, 2, 1, false}, 4}, std::tuple{dense, TestLayout{1, 2, 2, 1, false}, 8},
        std::tuple{experts, TestLayout{1, 2, 2, 2, false}, 8}, std::tuple{experts, TestLayout{1, 4, 1, 2, false}, 8},
        std::tuple{experts, TestLayout{1, 2, 1, 2, false}, 16}}) {
    config::Config config = model;
    config.train.global_batch_size = microbatches;
    config = with_graphs(test::cut(config, layout));
    test::run_sharded(config, layout, [&](const comm::World& world) {
      const auto assembly = step::assemble(config, world, test::kVocab);
      EXPECT_EQ(forecast::captured_graphs(assembly->graphs), 0);
      for (int64_t step = 0; step < 4; ++step) {
        test::step_at(*assembly, step);
        step::evaluate_step(*assembly, test::make_batches(*assembly, step));
      }
      EXPECT_EQ(forecast::captured_graphs(assembly->graphs), 2);
    });
  }
}

// A device synchronization would invalidate a capture on a GPU, and a replay has no actions.
TEST(StepGraphs, TimersOfActionsWaitForNothingInACapture) {
  config::Config config = with_graphs(test::cut(test::small_gpt(), {}));
  test::run_sharded(config, {}, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, test::kVocab);
    int waits = 0;
    step::Timers timers(2, [&] {
      EXPECT_FALSE(assembly->graphs.step->capturing());
      ++waits;
    });
    step::time_actions(assembly->model, assembly->graphs, timers);
    std::vector<int> waited;
    for (int64_t step = 0; step < 4; ++step) {
      test::step_at(*assembly, step);
      waited.push_back(std::exchange(waits, 0));
    }
    EXPECT_GT(waited[0], 0) << "eager steps are timed";
    EXPECT_EQ(waited, (std::vector<int>{waited[0], waited[0], 0, 0}));
    EXPECT_NE(timers.report(4, world.groups().world).find("forward"), std::string::npos);
  });
}

TEST(StepGraphs, AHandshakeOfLengthsIsRefused) {
  const TestLayout layout{1, 2, 1, 1, false};
  const config::Config config = with_graphs(test::cut(test::small_gpt(), layout));
  try {
    test::run_sharded(config, layout, [&](const comm::World& world) {
      const auto assembly = step::assemble(config, world, test::kVocab);
      assembly->model.variable_lengths = true;
      test::step_at(*assembly, 0);
    });
    FAIL() << "a step whose lengths are exchanged was captured";
  } catch (const base::Error& error) {
    EXPECT_NE(std::string(error.what()).find("differ in length"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace metroplex::step_graphs_ranks_test

// A rank's peak in a step and in each block against the trace, exact to the byte except for scalars.
#include "run/memory_cases.h"
#include "run/memory_watch.h"
#include "step/partial_graphs.h"
#include "run/small_experts.h"
#include "forecast/trace.h"
#include "support/everyday.h"
#include "support/without_onednn.h"

namespace metroplex::test::peak_memory_ranks_test {
namespace {

TEST(PeakMemoryRanks, EverySegmentAndTheWholeStepHoldWhatTheTraceSays) {
  const WithoutOneDnn without;
  for (const MemoryCase& test_case : peak_cases()) {
    SCOPED_TRACE(test_case.name);
    const config::Config config = peak_config(test_case);
    run_sharded(config, test_case.cut, [&](const comm::World& world) {
      SCOPED_TRACE(test_case.name + " rank " + std::to_string(world.rank()));
      expect_predicted_memory(config, test_case.vocab, world);
    });
  }
}

// Held memory and peak of one rank for every family, in every type and form of recompute.
std::vector<std::string> forms() {
  std::vector<std::string> all{"", "memory: {offload_activations: file}\n"};
  for (const char* rest :
       {"recompute_method: uniform, recompute_num_layers: 1", "recompute_method: uniform, recompute_num_layers: 2",
        "recompute_method: block, recompute_num_layers: 1"})
    all.push_back(full_recompute(rest));
  for (const char* modules : {"core_attn", "mlp", "layernorm", "activation", "core_attn, layernorm, activation"})
    all.push_back(selective_recompute(modules));
  return all;
}

TEST(PeakMemoryRanks, EveryFamilyTypeAndFormOfRecompute) {
  const WithoutOneDnn without;
  std::vector<std::pair<MemoryCase, std::string>> cases;  // with display names
  for (const std::string family : {"gpt", "llama", "codegeex"}) {
    for (const std::string dtype : {"fp64", "fp32", "bf16", "fp16"}) {
      for (const std::string& form : forms()) {
        for (const bool dropout : {false, true}) {
          MemoryCase test_case{family, family == "llama", {}};
          test_case.yaml = (dropout ? ", hidden_dropout: 0.1, attention_dropout: 0.1}\n" : "") + form +
                           "precision: {params_dtype: " + dtype + "}\n";
          cases.emplace_back(test_case, family + " " + dtype + " " + form + (dropout ? "with dropout" : ""));
        }
      }
    }
  }
  ASSERT_EQ(cases.size(), 3u * 4 * 10 * 2);
  for (const auto& [c, name] : sample_cases(cases, 5)) {
    SCOPED_TRACE(name);
    const config::Config config = peak_config(c);
    run_sharded(config, c.cut,
                [&, vocab = c.vocab](const comm::World& world) { expect_predicted_memory(config, vocab, world); });
  }
}

// Forwards and backwards in turns. All experts are padded to their capacity, so they have as many rows as
// predicted.
TEST(MemoryInTurns, HoldsWhatTheTraceSays) {
  const WithoutOneDnn without;
  const std::vector<std::string> padded{"model.moe_expert_capacity_factor=1",
                                        "model.moe_pad_expert_input_to_capacity=true"};
  const std::vector<std::vector<std::string>> forms{
      {},
      {"parallel.delay_wgrad_compute=true"},
      {"model.moe_token_dispatcher_type=allgather"},
      {"model.moe_token_dispatcher_type=static_buffer", "model.moe_expert_rank_capacity_factor=1.5",
       "model.moe_pad_expert_input_to_capacity=false", "model.moe_expert_capacity_factor=0"},
      {"model.moe_paged_stash=true", "model.moe_token_dispatcher_type=static_buffer",
       "model.moe_expert_rank_capacity_factor=1.5", "model.moe_pad_expert_input_to_capacity=false",
       "model.moe_expert_capacity_factor=0"},
      {"parallel.pipeline_schedule=dualpipe_v", "parallel.virtual_pipeline_model_parallel_size=2"},
      {"memory.recompute_granularity=full", "memory.recompute_method=uniform", "memory.recompute_num_layers=1"}};
  for (const std::vector<std::string>& form : forms) {
    SCOPED_TRACE(form.empty() ? "" : form[0]);
    std::vector<std::string> settings{"parallel.overlap_moe_expert_parallel_comm=true"};
    for (const auto* more : {&padded, &form}) settings.insert(settings.end(), more->begin(), more->end());
    config::Config config = config::parse(
        "model: {family: mixtral, num_layers: 4, hidden_size: 64, num_attention_heads: 4, ffn_hidden_size: 64,"
        " vocab_size: 64, num_moe_experts: 4, moe_router_force_load_balancing: true}\n"
        "parallel: {expert_model_parallel_size: 2, pipeline_model_parallel_size: 2}\n"
        "train: {seq_length: 64, micro_batch_size: 2, global_batch_size: 16, train_iters: 3}\n"
        "data: {mock_data: true}\n",
        settings);
    config::check(config, 4);
    config = config::resolved(config, 4);
    run_sharded(config, {.dp = 4}, [&](const comm::World& world) {
      device::MemoryMeter meter;
      const auto assembly = step::assemble(config, world, 64);
      MemoryWatch watch(*assembly, meter);
      train_watched(*assembly, watch);
      const int64_t predicted =
          forecast::step_bytes(forecast::predict_memory({config, world.size(), world.rank(), 64}));
      EXPECT_NEAR(watch.most(), predicted, kScalars);
    });
  }
}

using Modules = std::vector<std::string>;
constexpr int64_t kWarmup = 2;

config::Config with_graphs(config::Config config, config::CudaGraphImpl impl, const Modules& modules) {
  config.train.cuda_graph_impl = impl;
  config.train.cuda_graph_modules = modules;
  config.train.cuda_graph_warmup_steps = kWarmup;
  config.train.eval_interval = 1;
  return config;
}

std::string join_modules(const Modules& modules) {
  std::string text;
  for (const std::string& module : modules) text += module + " ";
  return text;
}

std::vector<nn::Microbatch> batches_of_run(step::Assembly& assembly, int64_t step, int64_t count) {
  auto batches = make_sharded_batches(assembly, step);
  if (count > 0) batches.resize(static_cast<size_t>(count));
  for (nn::Microbatch& batch : batches) {
    if (assembly.process.dtype != at::kDouble)
      batch.loss_mask = batch.loss_mask.to(at::kFloat);  // as in training runs
  }
  return batches;
}

// Microbatches of a step and of an evaluation; 0: the configuration's number.
struct StepCounts {
  int64_t trained = 0, evaluated = 0;
};

// Trains and evaluates until everything is captured, then compares the rank's graphs with the prediction. Static
// buffers and the peak of tensors in the pools match to the byte; the reserved memory is only a little larger.
// Replayed steps match except for scalars. That comparison needs parameters that no other rank shares, because thread
// ranks reduce gradients in each other's memory. It also needs as many microbatches in evaluation, whose inputs
// replace those of training.
void expect_predicted_graphs(const config::Config& config, const TestLayout& layout, StepCounts counts = {}) {
  const WithoutOneDnn without;
  run_sharded(config, layout, [&](const comm::World& world) {
    SCOPED_TRACE(testing::Message() << "rank " << world.rank() << " pp " << layout.pp << " vpp " << layout.vpp
                                    << " tp " << layout.tp << " " << config.train.cuda_graph_impl.text() << " "
                                    << join_modules(config.train.cuda_graph_modules) << config.model.family << " "
                                    << config.precision.params_dtype);
    device::MemoryMeter meter;
    const auto assembly = step::assemble(config, world, kVocab);
    MemoryWatch watch(*assembly, meter);
    int64_t most = 0;  // of a step, without the evaluation after it
    for (int64_t step = 0; step <= kWarmup + 1; ++step) {
      auto batches = batches_of_run(*assembly, step, counts.trained);
      watch.begin();
      step::train_step(*assembly, {batches, step + 1, step * config.train.global_batch_size, false, {}});
      watch.end();
      most = watch.most();
      for (nn::Microbatch& batch : batches) batch.training = false;
      if (counts.evaluated > 0) batches.resize(static_cast<size_t>(counts.evaluated), batches[0]);
      step::evaluate_step(*assembly, batches);
    }
    forecast::RankRequest request{config, world.size(), world.rank(), kVocab, counts.trained};
    const replay::MemoryPrediction want = forecast::predict_memory(request);
    request.eager = true;
    const replay::MemoryPrediction eager = forecast::predict_memory(request);
    const step::PartialGraphs::Sizes sizes = assembly->graphs.partial->sizes();
    EXPECT_EQ(sizes.training.static_inputs + sizes.training.gradients + sizes.evaluation.static_inputs,
              want.use.graphs - want.graph_pools);
    const int64_t peak = sizes.training.pools.peak + sizes.evaluation.pools.peak,
                  reserved = sizes.training.pools.reserved + sizes.evaluation.pools.reserved;
    EXPECT_EQ(peak, want.graph_pools);
    EXPECT_LE(static_cast<double>(reserved), 1.25 * static_cast<double>(peak) + 4096) << "fragmentation";
    EXPECT_GE(want.peak, eager.peak);
    if (layout.dp > 1 || layout.tp > 1 || counts.evaluated > 0 || want.peak == eager.peak) return;
    EXPECT_NEAR(most, forecast::step_bytes(want), 128) << "a tensor of activations has 256 bytes at least";
  });
}

TEST(GraphMemoryRanks, HoldsWhatIsPredicted) {
  const std::string parts = "parallel: {expert_model_parallel_size: 2, expert_tensor_parallel_size: 1}\n",
                    buffers = ", moe_token_dispatcher_type: static_buffer, moe_expert_rank_capacity_factor: 2",
                    overlap = ", moe_shared_expert_overlap: true";
  config::Config wide = small_llama(), codegeex = small_gpt(), recomputing = small_gpt();
  wide.precision.params_dtype = "bf16";
  wide.precision.fp32_residual_connection = true;
  codegeex.model.family = "codegeex";
  recomputing.memory.recompute_granularity = config::Recompute::selective;
  recomputing.memory.recompute_modules = {"core_attn", "layernorm", "activation"};
  config::Config halves = small_experts("", parts);
  halves.precision.params_dtype = "bf16";
  halves.precision.fp32_residual_connection = true;
  config::Config of_experts = small_experts("", parts);
  of_experts.memory.recompute_granularity = config::Recompute::selective;
  of_experts.memory.recompute_modules = {"shared_experts", "layernorm"};
  const std::vector<std::pair<config::Config, Modules>> runs{
      {small_gpt(), {"attn"}},
      {small_gpt(), {}},
      {recomputing, {"attn", "mlp"}},
      {wide, {"attn", "mlp"}},
      {wide, {"mlp"}},
      {codegeex, {"attn", "mlp"}},
      {codegeex, {}},
      {small_experts(buffers, parts), {}},
      {small_experts("", parts), {"attn", "moe_router", "moe_preprocess"}},
      {small_experts(overlap, parts), {"attn", "moe_router", "moe_preprocess"}},
      {of_experts, {"moe_router", "moe_preprocess"}},
      {halves, {"attn", "moe_router"}}};
  size_t turn = 0;
  for (const TestLayout& layout :
       {TestLayout{1, 1, 1, 2, false}, TestLayout{1, 2, 2, 2, false}, TestLayout{2, 2, 1, 2, true}}) {
    for (const auto& [model, modules] : runs) {
      for (const config::CudaGraphImpl impl :
           {config::CudaGraphImpl::local, config::CudaGraphImpl::transformer_engine}) {
        if (turn++ % 2 == 0 && !runs_full_sweep()) continue;
        expect_predicted_graphs(cut(with_graphs(model, impl, modules), layout), layout);
      }
      ++turn;
    }
    ++turn;  // by default a layout runs one implementation per configuration, the next layout the other one
  }
}

TEST(GraphMemoryRanks, PoolsOfVirtualStagesArePredicted) {
  struct Case {
    int64_t pp, vpp, microbatches;
    bool overlaps;
  };
  size_t turn = 0;
  for (const Case& test_case : std::vector<Case>{{2, 1, 8, false},
                                                 {4, 1, 8, false},
                                                 {2, 2, 8, false},
                                                 {2, 4, 8, true},
                                                 {2, 8, 8, false},
                                                 {2, 8, 8, true},
                                                 {4, 2, 8, true},
                                                 {4, 2, 8, false},
                                                 {4, 4, 8, true}}) {
    const TestLayout layout{1, test_case.pp, test_case.vpp, 1, false};
    ++turn;  // by default each case runs one of two scopes
    for (const bool experts : {false, true}) {
      config::Config model = experts ? small_experts() : small_gpt();
      if (experts) model.model.moe_layer_freq = "2";
      model.model.num_layers = 16;
      for (const Modules& modules : experts ? std::vector<Modules>{{"attn", "moe_router", "moe_preprocess"}, {}}
                                            : std::vector<Modules>{{"attn"}, {"attn", "mlp"}}) {
        if (++turn % 2 == 0 && !runs_full_sweep()) continue;
        const auto impl = turn % 4 == 1 ? config::CudaGraphImpl::transformer_engine : config::CudaGraphImpl::local;
        config::Config config = cut(with_graphs(model, impl, modules), layout);
        config.parallel.overlap_p2p_comm = test_case.overlaps;
        expect_predicted_graphs(config, layout, {test_case.microbatches});
      }
    }
  }
}

// An evaluation has as many graph instances as its own microbatches need, and none if no evaluation follows.
TEST(GraphMemoryRanks, EvaluationsCountWithTheirOwnMicrobatches) {
  const TestLayout layout{1, 2, 2, 1, false};
  config::Config model = with_graphs(small_gpt(), config::CudaGraphImpl::local, {"attn", "mlp"});
  const int64_t sample = model.train.micro_batch_size;
  for (const int64_t evaluated : {1, 8}) {
    model.train.eval_global_batch_size = evaluated * sample;
    expect_predicted_graphs(cut(model, layout), layout, {2, evaluated});
  }
  const auto pools = [&] { return forecast::predict_memory({cut(model, layout), 2, 0, kVocab, 2}).graph_pools; };
  const int64_t both = pools();
  model.train.eval_iters = 0;
  model.train.full_validation = true;
  EXPECT_EQ(pools(), both);
  model.train.eval_interval = 0;
  const int64_t trained = pools();
  EXPECT_LT(trained, both);
  model.train.eval_global_batch_size = 0;
  model.train.cuda_graph_impl = config::CudaGraphImpl::transformer_engine;
  EXPECT_EQ(pools(), trained);
}

// With identical chunks a rank has as many graph instances as passes, and each pool has the size of one pass.
TEST(GraphMemoryRanks, ChunksShareMemory) {
  config::Config model = small_gpt();
  model.model.num_layers = 16;
  const TestLayout layout{1, 2, 8, 1, false};
  const config::Config config =
      cut(with_graphs(model, config::CudaGraphImpl::transformer_engine, {"attn", "mlp"}), layout);
  const replay::RankTrace trace = forecast::trace_rank({config, 2, 0, kVocab});
  ASSERT_TRUE(trace.graphs.has_value());
  const int64_t pass = trace.graphs->graphs.at(0).pool;
  const replay::MemoryPrediction want = forecast::predict_memory({config, 2, 0, kVocab});
  EXPECT_EQ(want.graph_pools % pass, 0);
  EXPECT_LE(want.graph_pools / pass, (2 - 1) * 2 + (8 - 1) * 2 + 1 + 2) << "live passes, and two sends";
}

}  // namespace
}  // namespace metroplex::test::peak_memory_ranks_test

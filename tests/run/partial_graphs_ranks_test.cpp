// CUDA graphs of layer modules, run on the CPU: same bits as eager steps on every layout, and the planned number of
// graphs.
#include "step/partial_graphs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <functional>

#include "base/error.h"
#include "plan/graph_exits.h"
#include "support/everyday.h"
#include "run/small_experts.h"
#include "run/support.h"

namespace metroplex::partial_graphs_ranks_test {
namespace {

using config::CudaGraphImpl;
using test::TestLayout;
using Modules = std::vector<std::string>;

constexpr int64_t kWarmup = 2;

struct Ran {
  std::vector<double> losses, norms, scales, evaluated;
  std::vector<bool> updated;
  int64_t repeated = 0;                     // steps that ran again because expert rows overflowed
  std::map<std::string, at::Tensor> state;  // rank 0's
  step::PartialGraphs::Sizes sizes;         // also rank 0's
};

// The microbatches of a step; tests can return another number or form than the config's.
using BatchesOf = std::function<std::vector<nn::Microbatch>(step::Assembly&, int64_t step)>;

Ran train_steps(const config::Config& config, const TestLayout& layout, int64_t steps,
                const BatchesOf& make_batches = test::make_sharded_batches, bool variable_lengths = false) {
  Ran ran;
  test::run_sharded(config, layout, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, test::kVocab);
    assembly->model.variable_lengths = variable_lengths;
    Ran mine;
    int64_t most = 0;  // graphs planned for a step
    for (int64_t step = 0; step < steps; ++step) {
      const auto batches = make_batches(*assembly, step);
      const step::StepOutcome outcome =
          step::train_step(*assembly, {batches, step + 1, step * config.train.global_batch_size, false, {}});
      mine.losses.push_back(outcome.loss);
      mine.norms.push_back(outcome.grad_norm);
      mine.scales.push_back(outcome.loss_scale);
      mine.updated.push_back(outcome.updated);
      mine.repeated += outcome.repeated.empty() ? 0 : 1;
      if (assembly->graphs.partial) most = std::max(most, assembly->graphs.partial->sizes().planned);
      if (step % 2 == 1)
        mine.evaluated.push_back(step::evaluate_step(*assembly, make_batches(*assembly, step + 100)).mean());
    }
    mine.state = test::whole_state(*assembly);
    if (assembly->graphs.partial) {
      mine.sizes = assembly->graphs.partial->sizes();
      EXPECT_EQ(mine.sizes.training.graphs, most);
      EXPECT_EQ(mine.sizes.training.pools.live, 0) << "something of a step is still held";
    }
    if (world.rank() == 0) ran = std::move(mine);
  });
  return ran;
}

// Distinguishes NaNs.
std::vector<uint64_t> to_bits(const std::vector<double>& values) {
  std::vector<uint64_t> bits;
  for (const double value : values) bits.push_back(std::bit_cast<uint64_t>(value));
  return bits;
}

void expect_same_bits(const Ran& graph, const Ran& eager) {
  EXPECT_EQ(to_bits(graph.losses), to_bits(eager.losses)) << "losses";
  EXPECT_EQ(to_bits(graph.norms), to_bits(eager.norms)) << "norms";
  EXPECT_EQ(graph.scales, eager.scales);
  EXPECT_EQ(graph.updated, eager.updated);
  EXPECT_EQ(graph.repeated, eager.repeated);
  EXPECT_EQ(graph.evaluated, eager.evaluated);
  test::expect_equal_state(graph.state, eager.state);
  EXPECT_GT(graph.sizes.training.graphs, 0);
  EXPECT_GT(graph.sizes.training.size.nodes, 0);
}

config::Config with_graphs(config::Config config, CudaGraphImpl impl, const Modules& modules) {
  config.train.cuda_graph_impl = impl;
  config.train.cuda_graph_modules = modules;
  config.train.cuda_graph_warmup_steps = kWarmup;
  return config;
}

std::string text_of(const Modules& modules) {
  std::string text;
  for (const std::string& module : modules) text += module + " ";
  return text.empty() ? "whole layers" : text;
}

const std::vector<Modules> kMambaScopes{{"mamba"}, {"attn", "mamba"}, {}};
const std::vector<Modules> kScopes{{"attn"}, {"mlp"}, {"attn", "mlp"}, {}};

TEST(PartialGraphs, EveryScopeHasTheBitsOfStepsWithoutGraphs) {
  const config::Config config = test::small_gpt();
  const Ran eager = train_steps(test::cut(config, {}), {}, 7);
  for (const CudaGraphImpl impl : {CudaGraphImpl::local, CudaGraphImpl::transformer_engine}) {
    for (const Modules& modules : kScopes) {
      SCOPED_TRACE(::testing::Message() << config::text_of(impl) << " " << text_of(modules));
      const Ran graph = train_steps(test::cut(with_graphs(config, impl, modules), {}), {}, 7);
      expect_same_bits(graph, eager);
      // One rank holds one microbatch at a time.
      EXPECT_EQ(graph.sizes.training.graphs, 2 * config.model.num_layers);
      EXPECT_EQ(graph.sizes.evaluation.graphs, impl == CudaGraphImpl::local ? config.model.num_layers : 0);
    }
  }
}

// Alternates the scopes over both implementations. Returns how many steps ran again without graphs.
int64_t expect_same_bits_in_every_scope(const config::Config& config, const TestLayout& layout,
                                        const std::vector<Modules>& scopes = kScopes) {
  constexpr int64_t kSteps = 6;
  const Ran eager = train_steps(test::cut(config, layout), layout, kSteps);
  size_t next = 0;
  for (const Modules& modules : scopes) {
    const CudaGraphImpl impl = next++ % 2 == 0 ? CudaGraphImpl::local : CudaGraphImpl::transformer_engine;
    SCOPED_TRACE(::testing::Message() << config::text_of(impl) << " " << text_of(modules));
    expect_same_bits(train_steps(test::cut(with_graphs(config, impl, modules), layout), layout, kSteps), eager);
  }
  return eager.repeated;
}

TEST(PartialGraphs, LayoutsHaveTheBitsOfStepsWithoutThem) {
  size_t turn = 0;
  for (const TestLayout& layout : std::vector<TestLayout>{{2, 1, 1, 1, false},
                                                          {2, 1, 1, 1, true},
                                                          {4, 1, 1, 1, true},
                                                          {1, 2, 1, 1, false},
                                                          {1, 4, 1, 1, false},
                                                          {1, 2, 2, 1, false},
                                                          {1, 1, 1, 2, false},
                                                          {1, 2, 1, 2, false},
                                                          {2, 2, 2, 2, true}}) {
    for (const char* sharding : {"no_shard", "optim"}) {
      if (layout.dp == 1 && std::string(sharding) != "no_shard") continue;
      config::Config config = test::small_gpt();
      config.parallel.data_parallel_sharding_strategy = sharding;
      SCOPED_TRACE(::testing::Message() << "tp" << layout.tp << " pp" << layout.pp << " vpp" << layout.vpp << " dp"
                                        << layout.dp << " sp" << layout.sp << " " << sharding);
      // By default each layout runs two of the four scopes, the next layout the other two.
      const std::vector<Modules> some{kScopes[turn % 2], kScopes[turn % 2 + 2]};
      expect_same_bits_in_every_scope(config, layout, test::runs_full_sweep() ? kScopes : some);
      ++turn;
    }
  }
}

TEST(PartialGraphs, StagesWithoutLayersHaveTheBitsOfStepsWithoutThem) {
  config::Config config = test::small_gpt();
  const std::string layers(static_cast<size_t>(config.model.num_layers), 't');
  for (const std::string& text : {"E" + layers + "||L", "Et||" + layers.substr(1) + "L"}) {
    SCOPED_TRACE(text);
    config.parallel.pipeline_model_parallel_layout = text;
    expect_same_bits_in_every_scope(config, {1, 3, 1, 1, false});
  }
}

// The captured attention includes the exchange of keys and values.
TEST(PartialGraphs, ContextParallelRanksHaveTheBitsOfStepsWithoutThem) {
  for (const char* exchange : {"p2p", "all_gather", "a2a", "a2a+p2p"}) {
    for (const TestLayout& layout : std::vector<TestLayout>{{1, 1, 1, 4, false}, {1, 2, 1, 2, false}}) {
      SCOPED_TRACE(testing::Message() << exchange << " pp " << layout.pp);
      config::Config config = test::small_gpt();
      config.parallel.context_parallel_size = layout.dp;
      config.parallel.cp_comm_type = exchange;
      if (std::string(exchange) == "a2a+p2p")
        config.parallel.hierarchical_context_parallel_sizes = layout.dp == 4 ? "2,2" : "2,1";
      config = test::cut(config, layout);
      config::Config graphs = config;
      graphs.train.cuda_graph_impl = CudaGraphImpl::local;
      graphs.train.cuda_graph_warmup_steps = kWarmup;
      const Ran captured = train_steps(graphs, layout, 6);
      EXPECT_GT(captured.sizes.training.graphs, 0);
      expect_same_bits(captured, train_steps(config, layout, 6));
    }
  }
}

TEST(PartialGraphs, OtherFamiliesAndFormatsHaveTheBitsOfStepsWithoutThem) {
  config::Config llama = test::small_llama();
  llama.model.hidden_dropout = llama.model.attention_dropout = 0.1;
  config::Config codegeex = test::small_gpt();
  codegeex.model.family = "codegeex";
  config::Config recomputing = test::small_gpt();
  recomputing.memory.recompute_granularity = config::Recompute::selective;
  recomputing.memory.recompute_modules = {"core_attn", "layernorm", "activation"};
  config::Config bf16 = llama;
  bf16.precision.params_dtype = "bf16";
  config::Config wide_residuals = bf16;
  wide_residuals.precision.fp32_residual_connection = true;
  config::Config accumulating = bf16;
  accumulating.precision.main_grads_dtype = config::MainGradsDtype::params;
  const std::vector<std::pair<const char*, config::Config>> runs{{"llama", llama},
                                                                 {"codegeex", codegeex},
                                                                 {"recompute", recomputing},
                                                                 {"bf16", bf16},
                                                                 {"wide residuals", wide_residuals},
                                                                 {"bf16 gradients", accumulating},
                                                                 {"Mamba-2", test::small_hybrid()}};
  for (const auto& [name, config] : runs) {
    for (const TestLayout& layout : {TestLayout{}, TestLayout{2, 2, 1, 2, true}}) {
      SCOPED_TRACE(::testing::Message() << name << " on " << layout.ranks());
      const std::vector<Modules>& scopes = config.model.hybrid_layer_pattern.empty() ? kScopes : kMambaScopes;
      expect_same_bits_in_every_scope(config, layout,
                                      layout.ranks() == 1 ? scopes : std::vector<Modules>{scopes[0], {}});
    }
  }
}

TEST(PartialGraphs, StepsThatOverflowAreSkippedAsWithoutThem) {
  config::Config config = test::small_llama();
  config.precision.params_dtype = "fp16";
  config.precision.initial_loss_scale = 4194304.0;
  config.precision.hysteresis = 1;
  for (const TestLayout& layout : {TestLayout{}, TestLayout{2, 1, 1, 2, true}}) {
    const Ran eager = train_steps(test::cut(config, layout), layout, 12);
    EXPECT_GT(std::count(eager.updated.begin(), eager.updated.end(), true), 3);
    EXPECT_GT(std::count(eager.updated.begin() + kWarmup, eager.updated.end(), false), 1);
    for (const Modules& modules : kScopes) {
      SCOPED_TRACE(::testing::Message() << layout.ranks() << " " << text_of(modules));
      const auto graph = test::cut(with_graphs(config, CudaGraphImpl::local, modules), layout);
      expect_same_bits(train_steps(graph, layout, 12), eager);
    }
  }
}

TEST(PartialGraphs, AttentionOfLayersWithExpertsIsCaptured) {
  config::Config config = test::small_gpt();
  config.model.num_moe_experts = 8;
  config.model.moe_layer_freq = "[1,0,1,1]";
  config.model.moe_router_topk = 2;
  config.model.add_bias_linear = false;
  config.model.moe_router_load_balancing_type = "aux_loss";
  config.model.moe_aux_loss_coeff = "0.02";
  config::Config over_ranks = config;
  over_ranks.parallel.expert_model_parallel_size = 2;
  const std::vector<Modules> scopes{{"attn"}, {"attn", "mlp"}, {"mlp"}};
  expect_same_bits_in_every_scope(config, {}, scopes);
  expect_same_bits_in_every_scope(over_ranks, {1, 1, 1, 2, false}, scopes);
  expect_same_bits_in_every_scope(over_ranks, {2, 2, 1, 2, true}, {{"attn"}});
}

// For expert layers: the router, the dispatch plan, and the whole layer if the host reads no count. Covers all state
// that must not be counted twice or sampled again (small_experts), overflowing rows, replicas, pages.
TEST(PartialGraphs, LayersWithExpertsHaveTheBitsOfStepsWithoutThem) {
  const std::vector<Modules> routes{{"attn", "moe_router", "moe_preprocess"},
                                    {"moe_router"},
                                    {"mlp", "moe_router", "moe_preprocess"},
                                    {"attn", "moe_router"}},
      whole{{"moe"}, {}, {"attn", "moe"}, {"moe_router", "moe_preprocess"}};
  const std::string parts = "parallel: {expert_model_parallel_size: 2, expert_tensor_parallel_size: 1}\n",
                    skew = ", moe_router_force_skew: 1.0, moe_token_dispatcher_type: static_buffer",
                    replicas = ", moe_enable_echo: true, moe_echo_planner: exact, moe_num_echo_experts: 4";
  const TestLayout two{1, 1, 1, 2, false}, stages{1, 2, 2, 2, false}, all{2, 2, 1, 2, true};
  expect_same_bits_in_every_scope(test::small_experts(), {}, routes);
  expect_same_bits_in_every_scope(test::small_experts(), {}, whole);
  for (const TestLayout& layout : {two, stages, all}) {
    SCOPED_TRACE(::testing::Message() << "tp" << layout.tp << " pp" << layout.pp << " vpp" << layout.vpp);
    expect_same_bits_in_every_scope(test::small_experts("", parts), layout, routes);
    const auto buffers = [&](const std::string& factor) {
      return expect_same_bits_in_every_scope(
          test::small_experts(skew + ", moe_expert_rank_capacity_factor: " + factor, parts), layout, whole);
    };
    EXPECT_GT(buffers("1.3"), 0) << "a step without enough memory was expected";
    EXPECT_EQ(buffers("2, moe_paged_stash: true, moe_paged_stash_buffer_size_factor_cuda: 2"), 0);
    EXPECT_GT(buffers("2, moe_paged_stash: true, moe_paged_stash_page_size: 4, "
                      "moe_paged_stash_buffer_size_factor_cuda: 0.5"),
              0);
    EXPECT_EQ(buffers("1" + replicas), 0);
  }
}

TEST(PartialGraphs, AllMicrobatchesInFlightHaveAnInstanceEach) {
  config::Config config = test::small_gpt();
  config.parallel.pipeline_schedule = config::Schedule::gpipe;
  const TestLayout layout{1, 2, 1, 1, false};
  const Ran eager = train_steps(test::cut(config, layout), layout, 6);
  const Ran graph = train_steps(test::cut(with_graphs(config, CudaGraphImpl::local, {"attn"}), layout), layout, 6);
  expect_same_bits(graph, eager);
  EXPECT_EQ(graph.sizes.training.graphs, 2 * 2 * 8) << "two layers, eight microbatches";
}

std::vector<nn::Microbatch> take_batches(step::Assembly& assembly, int64_t step, int64_t count) {
  auto batches = test::make_batches(assembly, step);
  batches.resize(static_cast<size_t>(count));
  return batches;
}

TEST(PartialGraphs, AnotherNumberOfMicrobatchesReusesInstances) {
  const std::vector<int64_t> counts{4, 4, 2, 2, 8, 8, 2, 4};
  const BatchesOf batches = [&](step::Assembly& assembly, int64_t step) {
    return take_batches(assembly, step, counts[static_cast<size_t>(step % 100)]);
  };
  for (const TestLayout& layout : {TestLayout{}, TestLayout{1, 4, 1, 1, false}, TestLayout{1, 2, 2, 1, false}}) {
    const config::Config config = test::small_gpt();
    const Ran eager = train_steps(test::cut(config, layout), layout, 8, batches);
    for (const Modules& modules : kScopes) {
      SCOPED_TRACE(::testing::Message() << layout.pp << layout.vpp << " " << text_of(modules));
      const auto graph = test::cut(with_graphs(config, CudaGraphImpl::local, modules), layout);
      expect_same_bits(train_steps(graph, layout, 8, batches), eager);
    }
  }
  config::Config experts = test::small_experts(
      ", moe_router_force_skew: 1.0, moe_token_dispatcher_type: static_buffer, moe_expert_rank_capacity_factor: 1.3",
      "parallel: {expert_model_parallel_size: 2}\n");
  experts.train.global_batch_size = 16;
  const TestLayout two{1, 1, 1, 2, false};
  const Ran eager = train_steps(test::cut(experts, two), two, 8, batches);
  for (const Modules& modules : std::vector<Modules>{{}, {"attn", "moe_router", "moe_preprocess"}}) {
    SCOPED_TRACE(text_of(modules));
    expect_same_bits(
        train_steps(test::cut(with_graphs(experts, CudaGraphImpl::local, modules), two), two, 8, batches), eager);
  }
}

// Microbatch m of step s has 8 tokens, or 4 depending on both numbers.
std::vector<nn::Microbatch> batches_of_two_lengths(step::Assembly& assembly, int64_t step, bool mixed) {
  config::Train train = assembly.process.config.train;
  std::vector<nn::Microbatch> batches;
  for (int64_t m = 0; m < 8; ++m) {
    train.seq_length = (mixed ? step + m : step / 3) % 2 == 0 ? 8 : 4;
    batches.push_back(test::make_batch(train, step * train.global_batch_size + m, step));
  }
  return batches;
}

TEST(PartialGraphs, MicrobatchesOfAnotherLengthAreCapturedAnew) {
  for (const bool mixed : {false, true}) {
    const BatchesOf batches = [&](step::Assembly& assembly, int64_t step) {
      return batches_of_two_lengths(assembly, step, mixed);
    };
    for (const TestLayout& layout : {TestLayout{}, TestLayout{1, 2, 1, 1, false}}) {
      const config::Config config = test::small_gpt();
      const Ran eager = train_steps(test::cut(config, layout), layout, 8, batches, mixed);
      for (const Modules& modules : kScopes) {
        SCOPED_TRACE(::testing::Message() << mixed << layout.pp << " " << text_of(modules));
        const auto graph = test::cut(with_graphs(config, CudaGraphImpl::local, modules), layout);
        expect_same_bits(train_steps(graph, layout, 8, batches, mixed), eager);
      }
    }
  }
}

int64_t batch_bytes(const nn::Microbatch& batch) {
  int64_t bytes = 0;
  for (const at::Tensor& x : {batch.tokens, batch.labels, batch.loss_mask, batch.position_ids, batch.documents.ids,
                              batch.counters.samples, batch.counters.step, batch.sequence.rows})
    bytes += x.defined() ? static_cast<int64_t>(x.nbytes()) : 0;
  return bytes;
}

// Every layer's input is [8, 1, 16] in double. Two stages of two layers: the first holds two microbatches at a time,
// and a third while its output is being sent.
TEST(PartialGraphs, CaptureBeginsBehindTheWarmUpAndTakesTheBytesOfItsInputs) {
  constexpr int64_t kLayer = 8 * 16 * 8;
  const TestLayout layout{1, 2, 1, 1, false};
  for (const Modules& modules : std::vector<Modules>{{"attn"}, {}}) {
    const auto config = test::cut(with_graphs(test::small_gpt(), CudaGraphImpl::local, modules), layout);
    test::run_sharded(config, layout, [&](const comm::World& world) {
      const auto assembly = step::assemble(config, world, test::kVocab);
      const bool first = assembly->process.groups().pp.first();
      const plan::GraphPlan plan =
          plan::plan_graphs(assembly->model.table(assembly->process.config.parallel, 8, false),
                            assembly->process.groups().pp.index(), plan::alike_layers({2}));
      const int64_t instances = plan.num_instances, batch = batch_bytes(test::make_batches(*assembly, 0)[0]);
      EXPECT_GE(instances, first ? 2 : 1);
      for (int64_t step = 0; step < 5; ++step) {
        test::step_at(*assembly, step);
        const pipeline::GraphSizes sizes = assembly->graphs.partial->sizes().training;
        const int64_t used = step < kWarmup ? 0 : instances;
        EXPECT_EQ(sizes.graphs, used * 2 * 2);
        // Whole layers are chained: the second one reads the output buffer of the first.
        EXPECT_EQ(sizes.static_inputs, used * (batch + (modules.empty() ? 1 : 2) * kLayer));
        EXPECT_EQ(sizes.gradients, used == 0 ? 0 : kLayer);
        EXPECT_EQ(sizes.pools.live, 0);
        EXPECT_EQ(sizes.pools.peak > 0, used > 0);
        EXPECT_GE(sizes.pools.reserved, sizes.pools.peak);
      }
    });
  }
}

// Bytes that pass out of the router and the dispatch plan, and bytes that stay inside. The second of four layers is
// dense.
TEST(PartialGraphs, LayersWithExpertsHandOnWhatIsPlanned) {
  using enum config::CudaGraphModule;
  const std::string parts = "parallel: {expert_model_parallel_size: 2, expert_tensor_parallel_size: 1}\n",
                    buffers = ", moe_token_dispatcher_type: static_buffer, moe_expert_rank_capacity_factor: 1",
                    replicas = buffers + ", moe_enable_echo: true, moe_echo_planner: exact, moe_num_echo_experts: 4";
  struct Case {
    Modules modules;
    config::CudaGraphModules set;
    std::string keys;
    int64_t slots;
  };
  const std::vector<Case> cases{
      {{"attn", "moe_router", "moe_preprocess"}, {attn, moe_router, moe_preprocess}, "", 0},
      {{"attn", "moe_router"}, {attn, moe_router}, "", 0},
      {{"attn", "mlp", "moe_router", "moe_preprocess"}, {attn, mlp, moe_router, moe_preprocess}, replicas, 4},
      {{"moe"}, {moe}, buffers, 0},
      {{}, {}, buffers, 0}};
  for (const TestLayout& layout : {TestLayout{1, 1, 1, 2, false}, TestLayout{1, 2, 1, 2, false}}) {
    for (const Case& test_case : cases) {
      SCOPED_TRACE(testing::Message() << "pp " << layout.pp << " " << text_of(test_case.modules));
      const auto config = test::cut(with_graphs(test::small_experts(test_case.keys, parts),
                                                CudaGraphImpl::transformer_engine, test_case.modules),
                                    layout);
      plan::CapturedLayer dense{.tokens = 8, .hidden_size = 16, .element = 8}, experts = dense;
      experts.num_experts = 4, experts.probability = 8, experts.ep = 2, experts.slots = test_case.slots;
      experts.topk = config.model.moe_router_topk;
      experts.shared_width = 8, experts.shared_gate = true;
      std::map<int, plan::GraphTensors> tensors;
      for (const auto& [kind, layer] : {std::pair{0, dense}, std::pair{1, experts}}) {
        if (const auto captured = plan::captured_tensors(layer, test_case.set)) tensors[kind] = *captured;
      }
      test::run_sharded(config, layout, [&](const comm::World& world) {
        const auto assembly = step::assemble(config, world, test::kVocab);
        const int stage = assembly->process.groups().pp.index(), per_stage = 4 / static_cast<int>(layout.pp);
        plan::GraphLayers layers{{{}}};
        for (int i = stage * per_stage; i < (stage + 1) * per_stage; ++i) {
          const int kind = i == 1 ? 0 : 1;
          if (tensors.count(kind) > 0) layers.signatures[0].push_back(kind);
        }
        const plan::GraphPlan plan =
            plan::plan_graphs(assembly->model.table(assembly->process.config.parallel, 4, false), stage, layers);
        const plan::GraphBytes bytes = plan::graph_bytes(plan, layers, tensors);
        for (int64_t step = 0; step <= kWarmup; ++step) test::step_at(*assembly, step);
        const pipeline::GraphSizes sizes = assembly->graphs.partial->sizes().training;
        EXPECT_EQ(sizes.static_inputs,
                  plan.num_instances * batch_bytes(test::make_batches(*assembly, 0)[0]) + bytes.inputs);
        EXPECT_EQ(sizes.results, bytes.results);
        constexpr int64_t kLossFactor = 8;  // of auxiliary losses, an input of a backward like a gradient
        EXPECT_GE(sizes.gradients, bytes.gradients);
        EXPECT_LE(sizes.gradients, bytes.gradients + kLossFactor);
      });
    }
  }
}

// Segments in a stage's graphs, by name without the layer; empty: no segment of the layer is captured.
std::map<std::string, std::vector<std::string>> captured_segments(const pipeline::Stage& stage) {
  std::map<std::string, std::vector<std::string>> captured;  // by block
  for (const nn::Block& block : stage.blocks()) {
    if (block.is_layer) captured[block.name];
  }
  for (const pipeline::StageRegions::Entry& place : stage.regions().entries) {
    if (place.graph < 0) continue;
    for (const nn::Segment* segment : place.region.segments)
      captured[stage.blocks()[static_cast<size_t>(place.block)].name].push_back(segment->name());
  }
  return captured;
}

bool captures(const std::vector<std::string>& segments, const std::string& name) {
  return std::any_of(segments.begin(), segments.end(), [&](const std::string& one) { return one.ends_with(name); });
}

// Every recomputed module with every scope: each scope that validation accepts is captured whole in each layer that
// it names.
TEST(PartialGraphs, AcceptedScopesAreCapturedWithAnyRecomputation) {
  const std::vector<std::string> modules{"",    "core_attn", "mlp",  "layernorm",      "activation",
                                         "moe", "moe_act",   "full", "shared_experts", "block"};
  const std::vector<Modules> scopes{{},
                                    {"attn"},
                                    {"mlp"},
                                    {"attn", "mlp"},
                                    {"moe"},
                                    {"attn", "moe"},
                                    {"moe_router"},
                                    {"attn", "moe_router"},
                                    {"moe_router", "moe_preprocess"},
                                    {"attn", "mlp", "moe_router", "moe_preprocess"},
                                    {"moe_preprocess"}};
  int accepted = 0, refused = 0;
  for (const std::string& module : modules) {
    for (const Modules& scope : scopes) {
      for (const CudaGraphImpl impl : {CudaGraphImpl::local, CudaGraphImpl::transformer_engine}) {
        SCOPED_TRACE(testing::Message() << config::text_of(impl) << " " << text_of(scope) << "with " << module);
        config::Config config = with_graphs(test::small_experts(), impl, scope);
        if (module == "full" || module == "block") {
          config.memory.recompute_granularity = config::Recompute::full;
          config.memory.recompute_method =
              module == "full" ? config::RecomputeMethod::uniform : config::RecomputeMethod::block;
          config.memory.recompute_num_layers = 1;
        } else if (!module.empty()) {
          config.memory.recompute_granularity = config::Recompute::selective;
          config.memory.recompute_modules = {module};
        }
        if (!config::violations(config, 1).empty()) {
          ++refused;
          continue;
        }
        ++accepted;
        const config::Config cut = test::cut(config, {});
        test::run_sharded(cut, {}, [&](const comm::World& world) {
          const auto assembly = step::assemble(cut, world, test::kVocab);
          const config::CudaGraphModules named = assembly->process.config.train.captured_modules();
          using enum config::CudaGraphModule;
          for (const auto& [layer, segments] : captured_segments(*assembly->model.stages.at(0))) {
            SCOPED_TRACE(testing::Message() << layer << ", " << text_of(scope) << "with " << module);
            const bool dense = layer.ends_with(".1");
            EXPECT_EQ(captures(segments, ".self_attention"), named.has(attn));
            EXPECT_EQ(captures(segments, ".mlp"), dense && named.has(mlp));
            EXPECT_EQ(captures(segments, ".router"), !dense && (named.has(moe) || named.has(moe_router)));
            EXPECT_EQ(captures(segments, ".dispatch_plan"), !dense && (named.has(moe) || named.has(moe_preprocess)));
            EXPECT_EQ(captures(segments, ".combine"), !dense && named.has(moe));
            EXPECT_EQ(captures(segments, ".shared_experts"), !dense && named.has(moe_router) && !named.has(moe));
          }
        });
      }
    }
  }
  EXPECT_GT(accepted, 100);
  EXPECT_GT(refused, 2 * 2 * static_cast<int>(scopes.size()));
}

// With and without overlap, gate and recompute: the shared expert has the bits of eager steps. The graphs contain the
// shared expert, its first step, or the whole layer.
TEST(PartialGraphs, SharedExpertIsInsideWithTheSameBits) {
  const std::string parts = "parallel: {expert_model_parallel_size: 2, expert_tensor_parallel_size: 1}\n",
                    buffers = ", moe_token_dispatcher_type: static_buffer, moe_expert_rank_capacity_factor: 2";
  const std::vector<Modules> routes{{"attn", "moe_router"}, {"moe_router", "moe_preprocess"}, {"attn"}};
  for (const TestLayout& layout : {TestLayout{1, 1, 1, 2, false}, TestLayout{2, 2, 2, 2, true}}) {
    for (const bool overlaps : {false, true}) {
      for (const bool gate : {false, true}) {
        if (layout.tp > 1 && overlaps != gate && !test::runs_full_sweep()) continue;
        SCOPED_TRACE(testing::Message() << "overlap " << overlaps << " gate " << gate << " tp " << layout.tp);
        config::Config config = test::small_experts(buffers, parts);
        config.model.moe_shared_expert_overlap = overlaps;
        config.model.moe_shared_expert_gate = gate;
        expect_same_bits_in_every_scope(config, layout, routes);
        expect_same_bits_in_every_scope(config, layout, {{}});
        if (overlaps) continue;
        config.memory.recompute_granularity = config::Recompute::selective;
        config.memory.recompute_modules = {"shared_experts", "layernorm"};
        expect_same_bits_in_every_scope(config, layout, routes);
      }
    }
  }
}

}  // namespace
}  // namespace metroplex::partial_graphs_ranks_test

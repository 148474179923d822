// Experts that work on a projection of the hidden states (model.moe_latent_size): options that must change no bit,
// layouts and schedules against one rank, predicted memory, traffic and floating-point operations.
// experts_layouts_ranks_test.cpp sweeps the layouts.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "comm/backends/counting.h"
#include "plan/model_flops.h"
#include "run/expert_runs.h"
#include "run/memory_watch.h"
#include "run/memory_yaml.h"
#include "run/run_layouts.h"
#include "support/poisoned.h"
#include "support/without_onednn.h"

namespace metroplex::test::latent_experts_ranks_test {
namespace {

constexpr int64_t kLatent = 6;

config::Config latent(config::Config config) {
  config.model.moe_latent_size = kLatent;
  return config;
}

// factor: of static buffers; 0: alltoall.
config::Config skewed(const ExpertGrid& grid, double factor, const std::string& yaml = "") {
  return latent(skewed_experts(grid, factor, yaml));
}

ExpertRun train(const config::Config& config, const ExpertGrid& grid) {
  return train_steps(cut(config, grid.layout), grid, 4);
}

const ExpertGrid kTwo{{.dp = 2}, 1, 2, "optim"}, kStages{{.pp = 2, .vpp = 2, .dp = 2}, 1, 2, "no_shard"},
    kAll{{.tp = 2, .pp = 2, .dp = 2, .sp = true}, 2, 2, "optim_grads_params"};

// Names and initial values of Megatron. The standard deviation of the projection back is divided by sqrt(2 * 4
// layers). Estimates from 96 values have a relative error of 1 / sqrt(2 * 96) = 0.07; the limits are four errors of
// the ratio.
TEST(LatentExperts, HaveTheNamesAndValuesOfMegatron) {
  config::Config config = latent(small_experts());
  config.model.moe_shared_expert_intermediate_size = 0, config.model.moe_shared_expert_gate = false;
  config.model.add_mlp_bias = true;
  config = cut(config, {});
  run_sharded(config, {}, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    std::map<std::string, const nn::Param*> params;
    for (const nn::Param* param : assembly->model.params) params[param->name] = param;
    const auto shape = [&](const char* name) {
      const auto found = params.find(base::concat("decoder.layers.2.mlp.", name));
      return found == params.end() ? std::vector<int64_t>() : found->second->global_shape;
    };
    using Shape = std::vector<int64_t>;
    EXPECT_EQ(shape("fc1_latent_proj.weight"), (Shape{kLatent, 16}));
    EXPECT_EQ(shape("fc1_latent_proj.bias"), Shape{kLatent});
    EXPECT_EQ(shape("fc2_latent_proj.weight"), (Shape{16, kLatent}));
    EXPECT_EQ(shape("fc2_latent_proj.bias"), Shape{16});
    EXPECT_EQ(shape("experts.linear_fc1.weight"), (Shape{4, 16, kLatent}));
    EXPECT_EQ(shape("experts.linear_fc2.weight"), (Shape{4, kLatent, 16}));
    const auto deviation = [&](const char* name) {
      return params.at(base::concat("decoder.layers.2.mlp.", name))->data.std().item<double>();
    };
    const double ratio = deviation("fc1_latent_proj.weight") / deviation("fc2_latent_proj.weight");
    EXPECT_NEAR(ratio / std::sqrt(8.0), 1, 4 * 0.07 * std::sqrt(2.0));
  });
}

TEST(LatentExperts, RecomputeAndOffloadChangeNoBit) {
  for (const ExpertGrid& grid : {kStages, kAll}) {
    const ExpertRun want = train(skewed(grid, 0), grid);
    for (const std::string& form :
         {full_recompute("recompute_method: uniform, recompute_num_layers: 1"), selective_recompute("moe"),
          selective_recompute("moe_act, layernorm"), std::string("memory: {offload_activations: file}\n")}) {
      SCOPED_TRACE(words(grid) + " " + form);
      expect_same_bits(train(skewed(grid, 0, form), grid), want);
    }
  }
}

TEST(LatentExperts, StaticBuffersStashAndGraphsChangeNoBit) {
  const NanFillGuard poisoned;
  for (const ExpertGrid& grid : {kTwo, kAll}) {
    SCOPED_TRACE(words(grid));
    const ExpertRun want = train(skewed(grid, 0), grid);
    for (const double factor : {1.0, static_cast<double>(grid.ep)}) {
      config::Config config = skewed(grid, factor);
      expect_same_bits(train(config, grid), want);
      config.train.cuda_graph_impl = config::CudaGraphImpl::full_iteration;
      config.train.cuda_graph_warmup_steps = 1;
      expect_same_bits(train(config, grid), want);
    }
    config::Config paged = skewed(grid, static_cast<double>(grid.ep));
    paged.model.moe_paged_stash = true;
    paged.model.moe_paged_stash_page_size = 4;
    paged.model.moe_paged_stash_buffer_size_factor_cuda = 2;
    expect_same_bits(train(paged, grid), want);
  }
}

TEST(LatentExperts, PartialGraphsChangeNoBit) {
  using Modules = std::vector<std::string>;
  for (const auto& [factor, scopes] :
       {std::pair(0.0, std::vector<Modules>{{"moe_router"}, {"attn", "moe_router", "moe_preprocess"}}),
        {2.0, std::vector<Modules>{{"moe"}, {}}}}) {
    const ExpertRun want = train(skewed(kTwo, factor), kTwo);
    for (const Modules& modules : scopes) {
      SCOPED_TRACE(::testing::PrintToString(modules));
      config::Config config = skewed(kTwo, factor);
      config.train.cuda_graph_impl = config::CudaGraphImpl::local;
      config.train.cuda_graph_modules = modules;
      config.train.cuda_graph_warmup_steps = 1;
      expect_same_bits(train(config, kTwo), want);
    }
  }
}

// Replicas sum the weight gradients in another order: losses to 1e-12 relative, parameters to 1e-10, as layouts
// against one rank (verify/verify.h).
TEST(LatentExperts, ReplicasTrainAsWithout) {
  for (const ExpertGrid& grid : {kTwo, kAll}) {
    const ExpertRun want = train(skewed(grid, 0), grid);
    for (const double factor : {0.0, 1.0}) {
      SCOPED_TRACE(words(grid) + base::concat(" factor ", factor));
      config::Config config = skewed(grid, factor);
      config.model.moe_enable_echo = true;
      config.model.moe_num_echo_experts = 2 * grid.ep;
      config.model.moe_echo_planner = config::EchoPlanner::exact;
      const ExpertRun got = train(config, grid);
      EXPECT_GT(got.replicas, 0);
      for (size_t i = 0; i < want.losses.size(); ++i)
        EXPECT_NEAR(got.losses[i], want.losses[i], 1e-12 * want.losses[i]);
      for (const auto& [name, values] : want.state)
        EXPECT_LE((got.state.at(name) - values).abs().max().item<double>(), 1e-10) << name;
    }
  }
}

TEST(LatentExperts, EqualOneRankWithEverySchedule) {
  const std::string ep = "parallel.expert_model_parallel_size=2;", pp = "parallel.pipeline_model_parallel_size=2;",
                    v = pp + "parallel.virtual_pipeline_model_parallel_size=2;",
                    sp = "parallel.tensor_model_parallel_size=2;parallel.sequence_parallel=true;";
  const std::pair<std::string, int64_t> cases[] = {
      {ep + "parallel.overlap_moe_expert_parallel_comm=true;parallel.delay_wgrad_compute=true", 2},
      {ep + v + "parallel.pipeline_schedule=dualpipe_v;parallel.overlap_moe_expert_parallel_comm=true", 4},
      {pp + "parallel.pipeline_schedule=zb_h1;" + sp + "parallel.expert_tensor_parallel_size=2", 4},
      {v + "parallel.pipeline_schedule=zb_v;" + ep + "parallel.data_parallel_sharding_strategy=optim_grads", 4},
      {sp + ep + "parallel.context_parallel_size=2;parallel.expert_tensor_parallel_size=1", 4},
      {sp + ep + "parallel.expert_tensor_parallel_size=1;peft.lora_rank=2;peft.lora_dropout=0.25", 4},
      {sp + "peft.lora_rank=2;peft.lora_target_modules=fc1_latent_proj,fc2_latent_proj,experts.down_proj", 2},
      {ep + "train.freeze=*latent_proj*", 2}};
  for (const auto& [settings, ranks] : cases) {
    SCOPED_TRACE(settings);
    config::Config config = latent(small_experts());
    config.model.moe_router_load_balancing_type = "aux_loss";
    config.model.moe_aux_loss_coeff = "0.02";
    std::vector<std::string> all;
    std::istringstream stream(settings);
    for (std::string setting; std::getline(stream, setting, ';');) all.push_back(setting);
    config = config::parse(config::dump(config), all);
    config.parallel.ddp_bucket_size = 2000;
    std::map<int64_t, verify::LayoutRun> references;
    run::expect_equals_single_rank(run::for_ranks(config, ranks), ranks, references);
  }
}

TEST(LatentExperts, CheckpointsContinueOnAnyLayout) {
  config::Config config = latent(small_experts());
  config.model.moe_router_load_balancing_type = "aux_loss";
  config.model.moe_aux_loss_coeff = "0.02";
  const auto on = [&](const ExpertGrid& grid) {
    config::Config its = config;
    its.parallel.expert_tensor_parallel_size = grid.etp, its.parallel.expert_model_parallel_size = grid.ep;
    its.parallel.data_parallel_sharding_strategy = grid.sharding;
    return its;
  };
  const Outcome want = run_leg(config, {{}, "", "", 0, 3});
  const Folder folder;
  const Outcome first = run_leg(on(kAll), {kAll.layout, "", folder.at("first"), 0, 1}),
                second = run_leg(on(kTwo), {kTwo.layout, folder.at("first"), folder.at("second"), 1, 2}),
                third = run_leg(on(kStages), {kStages.layout, folder.at("second"), "", 2, 3});
  // Losses to 1e-12 relative, parameters to 1e-10 (verify/verify.h).
  EXPECT_NEAR(third.losses.at(0), want.losses.at(2), 1e-12 * want.losses[2]);
  EXPECT_EQ(third.state.size(), want.state.size());
  for (const auto& [name, values] : want.state)
    EXPECT_LE((third.state.at(name) - values).abs().max().item<double>(), 1e-10) << name;
}

TEST(LatentExperts, MemoryIsPredictedToTheByte) {
  const WithoutOneDnn without;
  for (const ExpertGrid& grid : {ExpertGrid{}, ExpertGrid{{.dp = 2}, 1, 2, "optim"}, kAll}) {
    for (const std::string& yaml :
         {std::string(), std::string(kBf16), selective_recompute("moe_act, shared_experts")}) {
      config::Config config = latent(small_experts("", yaml));
      config.precision = yaml == kBf16 ? config::parse(yaml).precision : config::parse("").precision;
      config.train.micro_batch_size = 2;
      config.train.seq_length = config.model.max_position_embeddings = 32;
      config.train.global_batch_size = 16;
      config.parallel.expert_tensor_parallel_size = grid.etp;
      config.parallel.expert_model_parallel_size = grid.ep;
      config.parallel.data_parallel_sharding_strategy = grid.sharding;
      config.model.moe_token_dispatcher_type = grid.layout.ranks() == 1 ? "local" : "static_buffer";
      if (grid.layout.ranks() > 1) config.model.moe_expert_rank_capacity_factor = 1.5;
      config = cut(config, grid.layout);
      run_sharded(config, grid.layout, [&](const comm::World& world) {
        SCOPED_TRACE(words(grid) + " " + yaml + base::concat(" rank ", world.rank()));
        expect_predicted_memory(config, kVocab, world);
      });
    }
  }
}

// Each of 3 layers sends 2 rows per token of the global batch, with their probabilities, and sends the results back;
// backward sends the gradients of all three. A probability has 8 bytes.
TEST(LatentExperts, SentRowsHaveTheLatentWidth) {
  for (const int64_t width : {int64_t{0}, kLatent}) {
    config::Config config = small_experts(", moe_router_force_even: true");
    config.model.moe_latent_size = width;
    config.model.moe_token_dispatcher_type = "alltoall";
    config.parallel.expert_model_parallel_size = 2;
    config = cut(config, kTwo.layout);
    const auto traffic = std::make_shared<comm::Traffic>();
    comm::ThreadsOptions options{std::chrono::seconds(60)};
    options.traffic = traffic;
    comm::run_threads(2, topology::RankGrid(2, config.parallel), options, [&](const comm::World& world) {
      const auto assembly = step::assemble(config, world, kVocab);
      step_at(*assembly, 0);
    });
    const int64_t rows = 3 * 2 * config.train.global_batch_size * config.train.seq_length;
    const int64_t row_bytes = 8 * (width > 0 ? width : config.model.hidden_size);
    EXPECT_EQ(traffic->of("etp-ep", "all_to_all").bytes, rows * (4 * row_bytes + 2 * 8)) << width;
  }
}

struct Counter final : device::Recorder {
  double flops = 0;
  void run(device::Operation operation) override {
    flops += operation.flops;
    operation.run();
  }
  void issued(const device::Operation& product) override { flops += product.flops; }
};

// Returns the recorded operations of a step minus those of the formula, which excludes router and gate. The terms
// are integers.
double uncounted_flops(const config::Config& asked) {
  const config::Config config = cut(asked, {});
  Counter counter;
  run_sharded(config, {}, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world.recorded(counter), kVocab);
    step_at(*assembly, 0);
  });
  const int64_t padded = config::padded_vocab_size(kVocab, config.model.make_vocab_size_divisible_by, 1);
  const plan::ModelShape shape = plan::model_shape(config, padded);
  return counter.flops - plan::step_flops(shape, {.batch_size = config.train.global_batch_size});
}

TEST(LatentExperts, FlopsFollowTheFormula) {
  const config::Config config = small_experts();
  EXPECT_EQ(uncounted_flops(latent(config)), uncounted_flops(config));
}

}  // namespace
}  // namespace metroplex::test::latent_experts_ranks_test

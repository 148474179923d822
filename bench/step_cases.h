// Configurations for predicted and measured steps: small models in all kinds of layouts, and models of one GPU.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/world.h"
#include "config/load.h"
#include "config/validate.h"
#include "forecast/calibrate.h"
#include "forecast/trace.h"
#include "step/batch.h"

namespace metroplex::bench {

struct StepSizes {
  int64_t hidden = 256, ffn = 704, expert_ffn = 384, vocab = 2048, seq = 128;
};

struct Case {
  const char* name;
  int ranks;
  std::vector<std::string> settings;  // "model.hidden_size=256"
};

// 26 configurations: dense, MoE, ZeRO, pipeline, virtual stages, recomputation, context parallelism, ECHO, passes in
// turns.
inline const std::vector<Case>& cases() {
  const std::string experts = "model.num_moe_experts=8";
  static const std::vector<Case> all{
      {"dense", 1, {}},
      {"dense, wide", 1, {"model.hidden_size=512", "model.ffn_hidden_size=1408"}},
      {"dense, short", 1, {"train.seq_length=64"}},
      {"dense, bf16", 1, {"precision.params_dtype=bf16"}},
      {"tp 2", 2, {"parallel.tensor_model_parallel_size=2"}},
      {"tp 2 sp", 2, {"parallel.tensor_model_parallel_size=2", "parallel.sequence_parallel=true"}},
      {"tp 4 sp", 4, {"parallel.tensor_model_parallel_size=4", "parallel.sequence_parallel=true"}},
      {"dp 2", 2, {}},
      {"dp 2 zero 1", 2, {"parallel.data_parallel_sharding_strategy=optim"}},
      {"dp 2 zero 2", 2, {"parallel.data_parallel_sharding_strategy=optim_grads"}},
      {"dp 2 zero 3", 2, {"parallel.data_parallel_sharding_strategy=optim_grads_params"}},
      {"pp 2", 2, {"parallel.pipeline_model_parallel_size=2"}},
      {"pp 4", 4, {"parallel.pipeline_model_parallel_size=4"}},
      {"pp 2 vpp 2",
       2,
       {"parallel.pipeline_model_parallel_size=2", "parallel.virtual_pipeline_model_parallel_size=2"}},
      {"pp 4 zero bubble", 4, {"parallel.pipeline_model_parallel_size=4", "parallel.pipeline_schedule=zb_h1"}},
      {"pp 2 tp 2", 4, {"parallel.pipeline_model_parallel_size=2", "parallel.tensor_model_parallel_size=2"}},
      {"recompute full",
       1,
       {"memory.recompute_granularity=full", "memory.recompute_method=uniform", "memory.recompute_num_layers=1"}},
      {"recompute selective", 1, {"memory.recompute_granularity=selective"}},
      {"cp 2", 2, {"parallel.context_parallel_size=2"}},
      {"cp 2 a2a", 2, {"parallel.context_parallel_size=2", "parallel.cp_comm_type=a2a"}},
      {"moe", 1, {experts}},
      {"moe ep 2",
       2,
       {experts, "parallel.expert_model_parallel_size=2", "model.moe_token_dispatcher_type=allgather"}},
      {"moe ep 4 alltoall",
       4,
       {experts, "parallel.expert_model_parallel_size=4", "model.moe_token_dispatcher_type=alltoall"}},
      {"echo ep 2",
       2,
       {experts, "parallel.expert_model_parallel_size=2", "model.moe_enable_echo=true",
        "model.moe_num_echo_experts=2"}},
      {"moe ep 2 in turns",
       2,
       {experts, "parallel.expert_model_parallel_size=2", "parallel.overlap_moe_expert_parallel_comm=true"}},
      {"moe ep 2 pp 2 in turns",
       4,
       {experts, "parallel.expert_model_parallel_size=2", "parallel.overlap_moe_expert_parallel_comm=true",
        "parallel.pipeline_model_parallel_size=2"}}};
  return all;
}

inline config::Config make_config(const Case& one, const StepSizes& sizes = {}) {
  config::Config config;
  config.model.num_layers = 4;
  config.model.hidden_size = sizes.hidden;
  config.model.ffn_hidden_size = sizes.ffn;
  config.model.num_attention_heads = 8;
  config.model.vocab_size = sizes.vocab;
  config.model.max_position_embeddings = 256;
  config.model.normalization = "RMSNorm";
  config.model.activation = "silu";
  config.model.gated_linear_unit = true;
  config.model.add_bias_linear = false;
  config.train.seq_length = sizes.seq;
  config.train.micro_batch_size = 2;
  config.train.train_iters = 1000;
  config.optim.lr = 1e-4;
  config.optim.lr_decay_style = "constant";
  config.data.mock_data = true;
  config = config::parse(config::dump(config), one.settings);
  if (config.model.num_moe_experts > 0) {
    config.model.ffn_hidden_size = sizes.expert_ffn;
    config.model.moe_router_topk = 2;
    config.model.moe_router_force_load_balancing = true;
  }
  const int64_t dp =
      one.ranks / (config.parallel.tensor_model_parallel_size * config.parallel.pipeline_model_parallel_size *
                   config.parallel.context_parallel_size);
  config.train.global_batch_size = 8 * dp;
  config::check(config, one.ranks);
  return config::resolved(config, one.ranks);
}

// The same random microbatch in every step.
inline nn::Microbatch make_batch(const config::Config& config, const comm::World& world) {
  return step::shard_sequence(forecast::random_microbatch(config, world.groups().dp.index()),
                              step::sequence_sharding(config.parallel, world.groups().cp));
}

// A model of gpu_step and step_budget: one rank, bf16.
struct GpuCase {
  std::string model = "gpt2", device = "cuda", graphs = "none";
  bool small = false;                      // tests a program without a GPU
  std::vector<std::string> settings = {};  // as in Case
};

struct GpuSizes {
  int64_t layers, hidden, heads, groups, ffn, vocab, batch, seq;
  int64_t head_dim = 0, experts = 0, topk = 0;
};

struct GpuModel {
  const char* name;
  GpuSizes sizes;
};
// GPT-2 124M; four layers of Llama 3.2 1B; two layers of Mixtral at half width; two layers of Llama 3 8B; two layers
// of Qwen3-30B-A3B.
constexpr GpuModel kGpuModels[] = {{"gpt2", {12, 768, 12, 12, 3072, 50257, 8, 1024}},
                                   {"llama", {4, 2048, 32, 8, 8192, 32000, 2, 2048}},
                                   {"mixtral", {2, 2048, 16, 4, 7168, 32000, 2, 2048, 0, 8, 2}},
                                   {"llama_8b", {2, 4096, 32, 8, 14336, 128256, 1, 8192}},
                                   {"qwen3_30b", {2, 2048, 32, 4, 768, 151936, 2, 4096, 128, 128, 8}}};

inline GpuSizes gpu_sizes(const GpuCase& one) {
  std::string names;
  for (const GpuModel& model : kGpuModels) {
    names += names.empty() ? model.name : std::string(", ") + model.name;
    if (one.model != model.name) continue;
    GpuSizes sizes = model.sizes;
    const bool gpt2 = one.model == "gpt2", dense = sizes.experts == 0;
    if (one.small)
      sizes = {2,
               64,
               gpt2 ? 2 : 4,
               2,
               gpt2 ? 256 : 128,
               512,
               2,
               32,
               sizes.head_dim > 0 ? 32 : 0,
               dense ? 0 : 8,
               dense ? 0 : 2};
    return sizes;
  }
  MPX_CHECK(false, "bench", "model = ", one.model, ": must be one of ", names, "; use gpt2");
  return {};
}

inline config::Config gpu_model(const GpuCase& one) {
  const GpuSizes sizes = gpu_sizes(one);
  config::Config config;
  config.model.num_layers = sizes.layers;
  config.model.hidden_size = sizes.hidden;
  config.model.num_attention_heads = sizes.heads;
  config.model.vocab_size = sizes.vocab;
  config.train.seq_length = sizes.seq;
  config.train.micro_batch_size = sizes.batch;
  if (one.model == "gpt2") {
    config.model.activation = "gelu_tanh";
    return config;
  }
  config.model.num_query_groups = sizes.groups;
  config.model.kv_channels = sizes.head_dim;
  config.model.ffn_hidden_size = sizes.ffn;
  config.model.normalization = "RMSNorm";
  config.model.activation = "silu";
  config.model.gated_linear_unit = true;
  config.model.add_bias_linear = false;
  config.model.position_embedding_type = "rope";
  config.model.untie_embeddings_and_output_weights = true;
  config.model.qk_layernorm = one.model == "qwen3_30b";
  if (sizes.experts > 0) {
    config.model.num_moe_experts = sizes.experts;
    config.model.moe_router_topk = sizes.topk;
    config.model.moe_aux_loss_coeff = "0.01";
    config.model.moe_grouped_gemm = true;
  }
  return config;
}

inline config::Config gpu_config(const GpuCase& one) {
  config::Config config = gpu_model(one);
  config.model.max_position_embeddings = config.train.seq_length;
  config.precision.params_dtype = "bf16";
  config.train.global_batch_size = config.train.micro_batch_size;
  config.train.train_iters = 1000;
  config.train.cuda_graph_impl = one.graphs;
  config.train.cuda_graph_warmup_steps = 1;
  config.optim.lr = 1e-4;
  config.optim.lr_decay_style = "constant";
  config.optim.clip_grad = 0;
  config.data.mock_data = true;
  config.run.device = one.device;
  config = config::parse(config::dump(config), one.settings);
  config::check(config, 1);
  return config::resolved(config, 1);
}

// For a trace of the model's step with the code paths of sm_90.
inline forecast::RankRequest gpu_request(const GpuCase& one) {
  const config::Config config = gpu_config(one);
  return {
      .config = config, .vocab_size = config.model.vocab_size, .device = at::Device(at::kCUDA, 0), .capability = 90};
}

}  // namespace metroplex::bench

// Configurations of small models in all kinds of layouts, for predicted and measured steps.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/world.h"
#include "config/load.h"
#include "config/validate.h"
#include "forecast/calibrate.h"
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

// 24 configurations: dense, MoE, ZeRO, pipeline, virtual stages, recomputation, context parallelism, ECHO.
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
        "model.moe_num_echo_experts=2"}}};
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

}  // namespace metroplex::bench

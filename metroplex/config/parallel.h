// How the ranks are cut: the degree of every axis, and how layers are laid over pipeline stages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/sharding.h"

namespace metroplex::config {

struct Parallel {
  int64_t tensor_model_parallel_size = 1;
  int64_t pipeline_model_parallel_size = 1;
  int64_t virtual_pipeline_model_parallel_size = 1;  // model chunks a pipeline rank holds
  int64_t context_parallel_size = 1;
  int64_t expert_model_parallel_size = 1;
  int64_t expert_tensor_parallel_size = 0;  // 0: tensor_model_parallel_size
  bool sequence_parallel = false;
  std::string order = "tp-cp-ep-dp-pp";
  std::string pipeline_schedule = "auto";          // auto | none | gpipe | 1f1b | interleaved
  int64_t microbatch_group_size_per_vp_stage = 0;  // 0: pipeline_model_parallel_size
  int64_t decoder_first_pipeline_num_layers = 0;   // 0: even
  int64_t decoder_last_pipeline_num_layers = 0;
  bool account_for_embedding_in_pipeline_split = false;
  bool account_for_loss_in_pipeline_split = false;
  std::string pipeline_model_parallel_layout;  // "Et*3|(tt|)*4,tL"; excludes the four above
  bool overlap_p2p_comm = false;
  bool overlap_grad_reduce = true;
  int64_t ddp_bucket_size = 0;                               // elements; 0: max(40M, 1M * dp)
  std::string data_parallel_sharding_strategy = "no_shard";  // ZeRO 0-3: no_shard | optim | optim_grads |
                                                             // optim_grads_params: config/sharding.h
  int64_t num_distributed_optimizer_instances = 1;           // shard inside dp / this many ranks, replicate across
  bool overlap_param_gather = true;                          // ZeRO-1 and 2: gather a bucket when it is first needed
  bool align_param_gather = false;                           // every pp rank gathers at its own step's start

  Sharding sharding() const;  // of data_parallel_sharding_strategy; throws on an unknown one
  int64_t tp() const { return tensor_model_parallel_size; }
  int64_t pp() const { return pipeline_model_parallel_size; }
  int64_t vpp() const { return virtual_pipeline_model_parallel_size; }
  int64_t cp() const { return context_parallel_size; }
  int64_t ep() const { return expert_model_parallel_size; }
  int64_t etp() const { return expert_tensor_parallel_size == 0 ? tp() : expert_tensor_parallel_size; }
};

}  // namespace metroplex::config

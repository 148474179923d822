// Megatron's complete TransformerConfig for dense models and experts: the rules for keys that we share
// (config/rules_transformer.h), those for options that only Megatron has, and its derived values. An oracle: tests
// compare its answers with recorded ones, to show that our rules are Megatron's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/rules_transformer.h"
#include "megatron/cuda_graphs.h"

namespace metroplex::megatron {

struct ExpertOptions {
  bool variable_seq_lengths = false;
  std::string flex_backend = "deepep";
  bool enable_deepep = false;
  bool op_fuser = false;            // use_transformer_engine_op_fuser
  bool use_grouped_tensor = false;  // op_fuser with moe_grouped_gemm turns it on
  bool single_grouped_weight = false, single_grouped_bias = false;
  std::string dispatch_fwd_dtype = "bf16", combine_bwd_dtype = "bf16";
  std::optional<int64_t> deepep_num_sms, hybridep_num_sms, flex_num_sms;
  std::optional<double> rank_capacity_factor;
  bool padding_for_quantization = false;  // or its older name, ..._for_fp8
  bool permute_fusion = false;
  std::optional<int64_t> topk_limited_devices;
  bool layer_recompute = false;
  bool overlap_comm = false;            // overlap_moe_expert_parallel_comm
  bool early_memory_release = false;    // ep_overlap_early_attn_memory_release
  bool overlap_dispatch_wgrad = false;  // overlap_dispatch_backward_with_experts_wgrad
  bool delay_wgrad = false;
  bool paged_stash = false;
  bool input_jitter = false;  // moe_input_jitter_eps is given, even 0
};

// Names are Megatron's; the base class has those of our config.
struct TransformerConfig : config::TransformerSettings {
  int64_t hidden_size = 0;
  std::optional<int64_t> ffn_hidden_size;
  std::optional<int64_t> kv_channels;
  bool has_pipeline_dtype = true;
  std::optional<int64_t> microbatch_group_size_per_vp_stage;
  std::string activation = "gelu";
  bool gated_linear_unit = false;
  bool bias_activation_fusion = false;
  bool defer_embedding_wgrad_compute = false;
  bool gradient_accumulation_fusion = false;
  int64_t wgrad_deferral_limit = 0;
  bool overlap_p2p_comm = false;
  bool batch_p2p_comm = true;
  bool overlap_p2p_comm_warmup_flush = false;
  bool fp16 = false;
  bool bf16 = false;
  bool cpu_offloading = false;
  int64_t cpu_offloading_num_layers = 0;
  bool fine_grained_activation_offloading = false;
  std::vector<std::string> offload_modules;
  std::optional<int64_t> max_inflight_offloads;           // fine_grained_offloading_max_inflight_offloads
  std::optional<std::vector<std::string>> cp_comm_types;  // a list; one word has no rule
  double hidden_dropout = 0.1, attention_dropout = 0.1;
  CudaGraphOptions cuda_graphs;  // source of `graphs`
  ExpertOptions expert_options;
};

// Violations of graph rules beyond config::graph_violations. `settings` has been migrated (megatron/cuda_graphs.h).
std::vector<config::Violation> graph_violations(const TransformerConfig& settings);

std::vector<config::Violation> violations(const TransformerConfig& settings);

// Fills ffn_hidden_size (4h, gated or not), kv_channels (the floor of h / heads), num_query_groups, etp,
// moe_ffn_hidden_size of experts, microbatch_group_size_per_vp_stage, recompute_modules (and granularity, from
// moe_layer_recompute), graphs, and vpp from a layout. Requires: no violations.
TransformerConfig resolve(TransformerConfig settings);

}  // namespace metroplex::megatron

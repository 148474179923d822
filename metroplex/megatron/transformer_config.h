// Megatron's TransformerConfig for dense models, whole: the rules that keys of ours fall under
// (config/rules_transformer.h), those about options that only Megatron has, and what it derives. An oracle: its
// answers are compared with recorded ones, so that the rules which every run is held to are Megatron's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/rules_transformer.h"

namespace metroplex::megatron {

// Names are Megatron's, those of the base config's.
struct TransformerConfig : config::TransformerSettings {
  int64_t hidden_size = 0;
  std::optional<int64_t> ffn_hidden_size;
  std::optional<int64_t> kv_channels;
  std::optional<int64_t> etp;
  bool has_pipeline_dtype = true;
  std::optional<int64_t> microbatch_group_size_per_vp_stage;
  std::string activation = "gelu";
  bool gated_linear_unit = false;
  bool add_bias_linear = true;
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
};

// All rules that it breaks.
std::vector<config::Violation> violations(const TransformerConfig& settings);

// Fills ffn_hidden_size (4h, gated or not), kv_channels (the floor of h / heads), num_query_groups, etp,
// microbatch_group_size_per_vp_stage, recompute_modules, and vpp from a layout. Requires: no violations.
TransformerConfig resolved(TransformerConfig settings);

}  // namespace metroplex::megatron

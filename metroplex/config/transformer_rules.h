// What Megatron's TransformerConfig accepts, derives and refuses, for dense models: the floor that the product's own
// stricter rules (validate.h) stand on. Unset is not the same as a number here: a first stage of 0 layers is refused,
// none is not; a width that the heads do not divide is floored, not refused.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "config/violation.h"

namespace metroplex::config {

struct TransformerSettings {
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t num_attention_heads = 0;
  std::optional<int64_t> num_query_groups;
  std::optional<int64_t> ffn_hidden_size;
  std::optional<int64_t> kv_channels;
  int64_t tp = 1;
  int64_t pp = 1;
  std::optional<int64_t> vpp;
  int64_t ep = 1;
  std::optional<int64_t> etp;
  bool sequence_parallel = false;
  bool has_pipeline_dtype = true;
  std::optional<int64_t> microbatch_group_size_per_vp_stage;
  std::optional<int64_t> first_stage_layers;
  std::optional<int64_t> last_stage_layers;
  bool account_for_embedding = false;
  bool account_for_loss = false;
  std::optional<std::string> layout;
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
  std::optional<std::string> recompute_granularity;
  std::optional<std::string> recompute_method;
  std::optional<int64_t> recompute_num_layers;
  std::optional<std::vector<std::string>> recompute_modules;
  bool distribute_saved_activations = false;
  bool cpu_offloading = false;
  int64_t cpu_offloading_num_layers = 0;
  bool fine_grained_activation_offloading = false;
  std::vector<std::string> offload_modules;
};

// What memory.recompute_modules may name, and what Megatron's other names are here ("" for those it has alone).
const std::vector<std::string>& recompute_module_names();
std::string recompute_module_alias(const std::string& module);

TransformerSettings transformer_settings(const Config& config);

// All rules that `settings` breaks, under the names of Config's keys.
std::vector<Violation> transformer_violations(const TransformerSettings& settings);

// Fills ffn_hidden_size, kv_channels, num_query_groups, etp, microbatch_group_size_per_vp_stage, recompute_modules,
// and vpp from a layout. Requires: no violations.
TransformerSettings transformer_resolved(TransformerSettings settings);

}  // namespace metroplex::config

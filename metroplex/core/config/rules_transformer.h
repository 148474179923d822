// The rules of Megatron's TransformerConfig for keys that exist here; the stricter rules in validate.h extend them.
// Unset differs from a number: a first stage of 0 layers is rejected, an unset one is not.
// tests/megatron/oracle/transformer_config.h adds Megatron-only rules and is compared with recorded cases.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "config/validate.h"

namespace metroplex::config {

bool among(const std::string& word, const std::vector<std::string>& words);

struct ExpertSettings {
  std::optional<int64_t> num_moe_experts;
  std::optional<int64_t> moe_ffn_hidden_size;
  bool some_layers_dense = false;  // by moe_layer_freq, even without experts
  int64_t topk = 2;
  std::string score_function = "softmax";
  bool pre_softmax = false;
  std::optional<int64_t> num_groups;
  std::optional<int64_t> group_topk;
  bool expert_bias = false;
  std::vector<std::string> balancing{"aux_loss"};
  std::optional<size_t> num_coefficients;  // length of the list for several loss types; unset: one for all
  std::optional<double> capacity_factor;   // negative: none
  bool pad_to_capacity = false;
  std::string dispatcher = "allgather";
  bool grouped_gemm = false;
  std::optional<int64_t> shared_size;
  bool shared_overlap = false;
};

struct GraphSettings {
  std::string impl = "none";
  std::vector<std::string> modules;  // empty: whole layers
};

struct TransformerSettings {
  int64_t num_layers = 0;
  int64_t num_attention_heads = 0;
  std::optional<int64_t> num_query_groups;
  int64_t tp = 1;
  int64_t pp = 1;
  std::optional<int64_t> vpp;
  int64_t ep = 1;
  bool sequence_parallel = false;
  std::optional<int64_t> first_stage_layers;
  std::optional<int64_t> last_stage_layers;
  bool account_for_embedding = false;
  bool account_for_loss = false;
  int64_t mtp_num_layers = 0;
  std::optional<std::string> layout;
  std::optional<std::string> recompute_granularity;
  std::optional<std::string> recompute_method;
  std::optional<int64_t> recompute_num_layers;
  std::optional<std::vector<std::string>> recompute_modules;
  bool distribute_saved_activations = false;
  bool add_bias_linear = true;
  bool latent_attention = false;
  std::optional<int64_t> etp;  // unset: tp
  ExpertSettings experts;
  GraphSettings graphs;
};

const std::vector<std::string>& recompute_module_names();

TransformerSettings transformer_settings(const Config& config);

// Returns all violated rules, with Config's key names.
std::vector<Violation> transformer_violations(const TransformerSettings& settings);
std::vector<Violation> expert_violations(const TransformerSettings& settings);
std::vector<Violation> graph_violations(const TransformerSettings& settings);

}  // namespace metroplex::config

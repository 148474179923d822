// The rules of Megatron's TransformerConfig that keys of ours fall under, for dense models: the floor that the
// product's own stricter rules (validate.h) stand on. Unset is not the same as a number here: a first stage of 0
// layers is refused, none is not. megatron/transformer_config.h adds what only Megatron has, and is compared with
// recorded cases.
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
  std::optional<std::string> layout;
  std::optional<std::string> recompute_granularity;
  std::optional<std::string> recompute_method;
  std::optional<int64_t> recompute_num_layers;
  std::optional<std::vector<std::string>> recompute_modules;
  bool distribute_saved_activations = false;
};

// What memory.recompute_modules may name, and what Megatron's other names are here ("" for those it has alone).
const std::vector<std::string>& recompute_module_names();
std::string recompute_module_alias(const std::string& module);

TransformerSettings transformer_settings(const Config& config);

// All rules that `settings` breaks, under the names of Config's keys.
std::vector<Violation> transformer_violations(const TransformerSettings& settings);

}  // namespace metroplex::config

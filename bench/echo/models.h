// MoE layers of three published models, from their config files.
#pragma once

#include "echo_model/cost.h"

namespace metroplex::bench {

struct Model {
  const char* name;
  int experts, topk;
  EchoLayer layer;
  double expert_flops() const { return 2.0 * topk * static_cast<double>(layer.expert_elements()); }  // per token
};

// attention: elements of the attention weights. pairs: elements per query and key, of scores and of values.
inline Model make_model(const char* name, int experts, int64_t hidden, int64_t ffn, int shared, double attention,
                        double pairs, int64_t tokens) {
  constexpr double kSequence = 4096;
  Model model{name, experts, 8, {}};
  model.layer.hidden = hidden;
  model.layer.ffn = ffn;
  model.layer.tokens = tokens;
  const double weights = attention + static_cast<double>(shared * model.layer.expert_elements() + hidden * experts);
  model.layer.other_flops = 2 * weights + 2 * pairs * kSequence / 2;  // causal: half of the keys
  return model;
}

inline Model deepseek_v3(int64_t tokens) {
  constexpr double kAttention =
      7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168;  // q, kv, output
  return make_model("DeepSeek-V3", 256, 7168, 2048, 1, kAttention, 128 * (192 + 128), tokens);
}

inline Model glm_45_air(int64_t tokens) {
  constexpr double kAttention = 4096 * (96 + 8 + 8) * 128 + 96 * 128 * 4096;
  return make_model("GLM-4.5-Air (106B)", 128, 4096, 1408, 1, kAttention, 96 * 256, tokens);
}

inline Model qwen3_235b(int64_t tokens) {
  constexpr double kAttention = 4096 * (64 + 4 + 4) * 128 + 64 * 128 * 4096;
  return make_model("Qwen3-235B", 128, 4096, 1536, 0, kAttention, 64 * 256, tokens);
}

}  // namespace metroplex::bench

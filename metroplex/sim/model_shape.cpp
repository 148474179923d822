#include "sim/model_shape.h"

#include "base/error.h"
#include "config/derived.h"
#include "config/experts.h"

namespace metroplex::sim {

ModelShape model_shape(const config::Config& config, int64_t padded_vocab_size) {
  const config::Model& model = config.model;
  MPX_CHECK(model.num_attention_heads > 0, "sim", "model.num_attention_heads ", model.num_attention_heads,
            " must be positive");
  const auto or_else = [](int64_t value, int64_t derived) { return value > 0 ? value : derived; };
  ModelShape shape;
  shape.num_layers = model.num_layers;
  shape.hidden_size = model.hidden_size;
  shape.num_attention_heads = model.num_attention_heads;
  shape.num_query_groups = or_else(model.num_query_groups, model.num_attention_heads);
  shape.kv_channels = or_else(model.kv_channels, model.hidden_size / model.num_attention_heads);
  shape.ffn_hidden_size = config::ffn_width(model);
  shape.padded_vocab_size = padded_vocab_size;
  shape.seq_length = config.train.seq_length;
  shape.gated_linear_unit = model.gated_linear_unit;
  shape.rms_norm = model.normalization == config::Normalization::RMSNorm;
  shape.linear_bias = model.add_bias_linear;
  shape.tied_embedding = model.tied();
  if (model.has_experts()) {
    shape.experts = Experts{.num_experts = model.num_moe_experts,
                            .router_topk = model.moe_router_topk,
                            .ffn_hidden_size = config::expert_ffn_width(model),
                            .shared_ffn_hidden_size = model.moe_shared_expert_intermediate_size,
                            .shared_expert_gate = model.moe_shared_expert_gate,
                            .layer_is_moe = config::moe_layers(model)};
  }
  return shape;
}

}  // namespace metroplex::sim

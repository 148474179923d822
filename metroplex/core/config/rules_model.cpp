// Rules for the network: widths, heads and lengths.
#include "config/rules.h"

#include <nlohmann/json.hpp>

#include "config/derived.h"
#include "config/family.h"
#include "config/layer_parts.h"

namespace metroplex::config {

using base::concat;

// Applies to dense layers, and to experts without an explicit width.
static void check_ffn(Rules& rules) {
  const Model& m = rules.config.model;
  const Family* const family = find_family(m.family);
  const bool dense = any_layer_has(m, &LayerParts::mlp) || (family != nullptr && family->top_query);
  if (!dense && (m.moe_ffn_hidden_size > 0 || !any_layer_has(m, &LayerParts::experts))) return;
  const int64_t tp = rules.config.parallel.tp(), ffn = ffn_width(m);
  rules.require(ffn > 0, "model.ffn_hidden_size", ffn,
                concat("cannot be derived as int(8/3 * ", key_is("model.hidden_size", m.hidden_size),
                       " / 64) * 64, which is 0"),
                "give it");
  rules.require(ffn % tp == 0, "model.ffn_hidden_size", ffn,
                "must be a multiple of " + key_is("parallel.tensor_model_parallel_size", tp),
                "choose a width that divides over the tensor-parallel ranks");
}

static void check_widths(Rules& rules) {
  const Model& m = rules.config.model;
  const int64_t tp = rules.config.parallel.tp();
  const std::string tensor_ranks = key_is("parallel.tensor_model_parallel_size", tp);
  if (m.multi_latent_attention) return check_ffn(rules);
  rules.require(m.kv_channels > 0 || m.hidden_size % m.num_attention_heads == 0, "model.hidden_size", m.hidden_size,
                "must be a multiple of " + key_is("model.num_attention_heads", m.num_attention_heads),
                "change one of the two, or give model.kv_channels");
  const int64_t groups = m.num_query_groups == 0 ? m.num_attention_heads : m.num_query_groups;
  rules.require(m.num_attention_heads % groups == 0, "model.num_query_groups", groups,
                "must divide " + key_is("model.num_attention_heads", m.num_attention_heads),
                "choose a divisor of the heads");
  rules.require(
      groups >= tp || tp % groups != 0, "model.num_query_groups", groups,
      "must be a multiple of " + tensor_ranks + ": a key/value head is never replicated over tensor-parallel ranks",
      "choose a tensor-parallel size that divides the query groups");
  check_ffn(rules);
  const int64_t head = m.kv_channels > 0 ? m.kv_channels : m.hidden_size / m.num_attention_heads;
  const auto rotated = static_cast<int64_t>(static_cast<double>(head) * m.rotary_percent);
  rules.require(
      m.position_embedding_type != PositionEmbedding::rope || (rotated > 0 && rotated % 2 == 0),
      "model.rotary_percent", m.rotary_percent,
      concat("must leave an even number of rotated channels, not ", rotated, " of the ", head, " a head has"),
      "choose an even head width (model.kv_channels) or another share");
}

static void check_json_objects(Rules& rules) {
  const Model& m = rules.config.model;
  for (const auto& [key, text] : {std::pair("model.special_token_ids", &m.special_token_ids),
                                  std::pair("model.generation_config", &m.generation_config)}) {
    const auto json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
    rules.require(text->empty() || json.is_object(), key, *text, "must be a JSON object",
                  "write it like {\"eos_token_id\": 2}, or leave it out");
  }
}

void check_model(Rules& rules) {
  const Model& m = rules.config.model;
  const int64_t tp = rules.config.parallel.tp(), seq = rules.config.train.seq_length;
  check_widths(rules);
  check_json_objects(rules);
  rules.require(m.max_position_embeddings == 0 || m.max_position_embeddings >= seq, "train.seq_length", seq,
                "must not exceed " + key_is("model.max_position_embeddings", m.max_position_embeddings),
                "shorten the sequences or give the model more positions");
  rules.require(!rules.config.parallel.sequence_parallel || tp == 1 || seq % tp == 0, "train.seq_length", seq,
                "must be a multiple of " + key_is("parallel.tensor_model_parallel_size", tp) +
                    " with parallel.sequence_parallel",
                "choose another length or turn sequence_parallel off");
  rules.require(!m.gated_linear_unit || m.activation != Activation::squared_relu, "model.activation", m.activation,
                "has no gated form (model.gated_linear_unit is true)", "use silu or gelu, or turn the gate off");
}

}  // namespace metroplex::config

// Rules for ranks, the network and the pipeline.
#include "config/rules.h"

#include <algorithm>
#include <sstream>

#include <nlohmann/json.hpp>

#include "config/derived.h"
#include "config/experts.h"

namespace metroplex::config {

using base::concat;

void check_ranks(Rules& rules) {
  const Parallel& p = rules.config.parallel;
  const int64_t model_ranks = p.tp() * p.pp() * p.cp();
  rules.require(
      rules.world_size % model_ranks == 0, "parallel.tensor_model_parallel_size", p.tp(),
      concat("tp * pp * cp = ", model_ranks, " (with ", key_is("parallel.pipeline_model_parallel_size", p.pp()), ", ",
             key_is("parallel.context_parallel_size", p.cp()), ") must divide the ", rules.world_size, " ranks"),
      concat("start a multiple of ", model_ranks, " ranks, or choose sizes whose product divides ",
             rules.world_size));
  std::vector<std::string> axes;
  std::istringstream stream(p.order);
  for (std::string axis; std::getline(stream, axis, '-');) axes.push_back(axis);
  const std::pair<const char*, int64_t> sizes[] = {
      {"tp", p.tp()}, {"cp", p.cp()}, {"ep", p.ep()}, {"dp", 2}, {"pp", p.pp()}};
  bool known = true, complete = true;
  for (const auto& axis : axes) {
    known &= std::any_of(std::begin(sizes), std::end(sizes), [&](const auto& size) { return axis == size.first; }) &&
             std::count(axes.begin(), axes.end(), axis) == 1;
  }
  for (const auto& [axis, size] : sizes) complete &= size == 1 || std::count(axes.begin(), axes.end(), axis) == 1;
  rules.require(known && complete, "parallel.order", p.order,
                "must name tp, cp, ep, dp and pp once each, with - between (those of size 1 may be left out)",
                "use tp-cp-ep-dp-pp or tp-cp-ep-pp-dp");
}

// For dense layers. If all layers have experts of an explicit width, ffn_hidden_size is unused.
static void check_ffn(Rules& rules) {
  const Model& m = rules.config.model;
  const int64_t tp = rules.config.parallel.tp(), ffn = ffn_width(m);
  if (m.moe_ffn_hidden_size > 0 && all_layers_have_experts(m)) return;
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

static void check_even_split(Rules& rules) {
  const Parallel& p = rules.config.parallel;
  const int64_t layers = rules.config.model.num_layers, stages = p.pp() * p.vpp();
  const bool other_way = !p.pipeline_model_parallel_layout.empty() || p.decoder_first_pipeline_num_layers > 0 ||
                         p.decoder_last_pipeline_num_layers > 0 || p.account_for_embedding_in_pipeline_split ||
                         p.account_for_loss_in_pipeline_split;
  rules.require(other_way || layers % stages == 0, "model.num_layers", layers,
                concat("must be a multiple of the ", stages, " stages (",
                       key_is("parallel.pipeline_model_parallel_size", p.pp()), ", ",
                       key_is("parallel.virtual_pipeline_model_parallel_size", p.vpp()), ")"),
                "change the layers or the stages, or place layers with decoder_first_pipeline_num_layers or "
                "pipeline_model_parallel_layout");
  const int64_t ends = p.decoder_first_pipeline_num_layers + p.decoder_last_pipeline_num_layers;
  rules.require(ends == 0 || p.pp() > 1, "parallel.pipeline_model_parallel_size", p.pp(),
                "must be above 1 if the end stages have their own numbers of layers "
                "(parallel.decoder_first_pipeline_num_layers, "
                "parallel.decoder_last_pipeline_num_layers)",
                "set both to 0 or use more stages");
  rules.require(ends <= layers, "model.num_layers", layers,
                concat("is less than the ", ends, " layers of the end stages"), "give the end stages fewer layers");
}

void check_pipeline(Rules& rules) {
  const Parallel& p = rules.config.parallel;
  const int64_t vpp = virtual_stages(p);
  check_even_split(rules);
  const std::string stages = key_is("parallel.pipeline_model_parallel_size", p.pp());
  rules.require(vpp == 1 || p.pp() > 1, "parallel.virtual_pipeline_model_parallel_size", vpp,
                "needs a pipeline, but " + stages, "set it to 1 or use more pipeline stages");
  const Choice<Schedule> order = schedule(p);
  rules.require(order != Schedule::none || p.pp() == 1, "parallel.pipeline_schedule", order,
                "needs one stage, but " + stages, "use auto");
  rules.require(order != Schedule::interleaved || vpp > 1, "parallel.pipeline_schedule", order,
                "needs virtual stages, but parallel.virtual_pipeline_model_parallel_size = 1",
                "use auto, or set virtual stages");
  rules.require((order != Schedule::one_f_one_b && order != Schedule::gpipe) || vpp == 1,
                "parallel.pipeline_schedule", order,
                key_is("has no virtual stages, but parallel.virtual_pipeline_model_parallel_size", vpp), "use auto");
  rules.require(!p.overlap_p2p_comm || vpp > 1, "parallel.overlap_p2p_comm", "true",
                "needs the interleaved schedule: parallel.virtual_pipeline_model_parallel_size is 1", "turn it off");
  const int64_t group = p.microbatch_group_size_per_vp_stage;
  rules.require(group == 0 || vpp == 1 || group >= p.pp(), "parallel.microbatch_group_size_per_vp_stage", group,
                "must be at least " + stages, "use 0");
}

}  // namespace metroplex::config

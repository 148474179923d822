// Cohere2ForCausalLM: attention and MLP read one LayerNorm without bias. Layers with a window have rotary positions
// of neighboring channels, the others have none. The logits are scaled.
#include "hf/decoder.h"

#include "config/experts.h"

namespace metroplex::hf {
namespace cohere2 {

// Layers without a window, which have no rotary positions.
static std::vector<bool> unrotated_layers(const ConfigReader& config, std::vector<bool> slides) {
  const Json& types = config.value("layer_types");  // add_windows checks its form
  for (size_t i = 0; types.is_array() && i < slides.size(); ++i) slides[i] = types[i] == "sliding_attention";
  if (!config.has("sliding_window")) slides.assign(slides.size(), false);
  slides.flip();
  return slides;
}

static Settings settings(ConfigReader& config) {
  config.add_defaults({{"max_position_embeddings", 8192},
                       {"layer_norm_eps", 1e-5},
                       {"tie_word_embeddings", true},
                       {"sliding_window", 4096}});
  config.replace("head_dim", nullptr);  // transformers derives it
  Settings settings = sizes_and_positions(config, PartialRope::refused, "layer_norm_eps");
  add_activation(config, "hidden_act", "silu", settings);
  add_heads(config, settings);
  const int64_t every = config.integer("sliding_window_pattern", 4);
  config.require(every > 0, "sliding_window_pattern", "a number above 0");
  std::vector<bool> slides;
  for (int64_t i = 0; i < num_layers(config); ++i) slides.push_back((i + 1) % every != 0);
  add_windows(config, slides, settings);
  set(settings, "no_rope_freq", layer_pattern(unrotated_layers(config, slides)));
  const bool biases = config.flag("attention_bias", false);
  add_biases(biases, biases, false, settings);
  const double scale = config.number("logit_scale", 0.0625);
  config.require(scale > 0, "logit_scale", "a number above 0");
  set(settings, "logits_scaling", 1 / scale);
  set(settings, "normalization", "LayerNorm");
  set(settings, "add_norm_bias", false);
  set(settings, "rotary_interleaved", true);
  set(settings, "parallel_attention_mlp", true);
  return settings;
}

static std::vector<MappedTensor> tensors(const config::Model& m) { return decoder_tensors(m, {}); }

static Json make_config(const config::Model& m) {
  Json json = decoder_config(m);
  json.erase("rms_norm_eps");
  json["layer_norm_eps"] = m.layernorm_epsilon;
  json["attention_bias"] = m.output_bias();
  json["logit_scale"] = 1 / m.logits_scaling;
  json["sliding_window"] = window_config(m);
  json["layer_types"] = layer_types(m);
  return json;
}

}  // namespace cohere2

const Family kCohere2{"cohere2", "Cohere2ForCausalLM", cohere2::settings, cohere2::tensors, cohere2::make_config};

}  // namespace metroplex::hf

// Qwen2ForCausalLM, arXiv 2407.10671: only queries, keys and values have biases.
#include "hf/decoder.h"

namespace metroplex::hf {
namespace qwen2 {

static Settings settings(ConfigReader& config) {
  config.add_defaults({{"num_key_value_heads", 32}, {"max_position_embeddings", 32768}, {"sliding_window", 4096}});
  Settings settings = decoder_settings(config, Window::switched);
  add_biases(true, false, false, settings);
  return settings;
}

static std::vector<MappedTensor> tensors(const config::Model& m) { return decoder_tensors(m, {}); }

static Json make_config(const config::Model& m) {
  Json json = decoder_config(m);
  add_switched_window(m, json);
  return json;
}

}  // namespace qwen2

const Family kQwen2{"qwen2", "Qwen2ForCausalLM", qwen2::settings, qwen2::tensors, qwen2::make_config};

}  // namespace metroplex::hf

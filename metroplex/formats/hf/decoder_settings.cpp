// Converts config.json to keys of section model.
#include "hf/decoder.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"

namespace metroplex::hf {
namespace {

std::string where(const char* key) { return base::concat("config.json: ", key); }

// The first name of an activation is the one that is written.
struct ActivationName {
  const char* theirs;
  config::Activation ours;
};
constexpr ActivationName kActivations[] = {
    {"silu", config::Activation::silu},          {"swish", config::Activation::silu},
    {"gelu", config::Activation::gelu},          {"gelu_pytorch_tanh", config::Activation::gelu_tanh},
    {"gelu_new", config::Activation::gelu_tanh}, {"quick_gelu", config::Activation::quick_gelu},
    {"relu", config::Activation::relu},          {"relu2", config::Activation::squared_relu}};

void add_yarn(const ConfigReader& config, const ConfigReader& declared, Settings& settings) {
  const int64_t positions = config.integer("max_position_embeddings", 2048);
  const int64_t before = declared.integer("original_max_position_embeddings", positions);
  const double ratio = static_cast<double>(positions) / static_cast<double>(std::max<int64_t>(1, before));
  const double factor = declared.number("factor", ratio);
  set(settings, "rotary_scaling_factor", factor);
  set(settings, "original_max_position_embeddings", before);
  set(settings, "beta_fast", declared.number("beta_fast", 32.0));
  set(settings, "beta_slow", declared.number("beta_slow", 1.0));
  set(settings, "yarn_correction_range_round_to_int", declared.flag("truncate", true));
  // transformers reads mscale only if both are set. mscale_all_dim alone scales latent attention.
  const double mscale = declared.number("mscale", 0.0), all_dim = declared.number("mscale_all_dim", 0.0);
  const bool both = mscale != 0 && all_dim != 0;
  set(settings, "mscale", both ? mscale : 1.0);
  set(settings, "mscale_all_dim", all_dim);
  const double sharper = factor <= 1 ? 1.0 : 0.1 * std::log(factor) + 1.0;
  if (declared.has("attention_factor"))
    set(settings, "yarn_attention_factor", declared.number("attention_factor", sharper));
  else if (!both && all_dim != 0) set(settings, "yarn_attention_factor", sharper);
}

// Factors as text with commas between.
std::string factor_list(const ConfigReader& declared, const char* key) {
  const Json& list = declared.value(key);
  const bool numbers = list.is_array() && !list.empty() &&
                       std::all_of(list.begin(), list.end(), [](const Json& factor) { return factor.is_number(); });
  declared.require(numbers, key, "a list of numbers with rope_type longrope");
  std::string text;
  for (const Json& factor : list) text += (text.empty() ? "" : ",") + exact(factor.get<double>());
  return text;
}

void add_longrope(const ConfigReader& config, const ConfigReader& declared, Settings& settings) {
  const int64_t positions = config.integer("max_position_embeddings", 2048);
  const ConfigReader& holder = config.has("original_max_position_embeddings") ? config : declared;
  const int64_t before = holder.integer("original_max_position_embeddings", positions);
  const double ratio = static_cast<double>(positions) / static_cast<double>(std::max<int64_t>(1, before));
  set(settings, "longrope_short_factor", factor_list(declared, "short_factor"));
  set(settings, "longrope_long_factor", factor_list(declared, "long_factor"));
  set(settings, "original_max_position_embeddings", before);
  set(settings, "rotary_scaling_factor", std::max(1.0, declared.number("factor", ratio)));
  if (declared.has("attention_factor"))
    set(settings, "yarn_attention_factor", declared.number("attention_factor", 1.0));
}

void add_scaling(const ConfigReader& config, const ConfigReader& declared, const char* key, Settings& settings) {
  const std::string type = declared.text("rope_type", declared.text("type", "default"));
  // All dimensions of a multimodal position are equal in a text.
  declared.ignore(
      {"type", "original_max_position_embeddings", "max_position_embeddings", "mrope_section", "mrope_interleaved"});
  MPX_CHECK(type == "default" || type == "llama3" || type == "yarn" || type == "linear" || type == "longrope", "hf",
            where(key), " has rope_type ", type,
            ", which is not supported; use default, linear, llama3, yarn or longrope");
  set(settings, "rope_type", type == "yarn" || type == "longrope" ? type : "rope");
  if (type == "default") return;
  const auto needed = [&](const char* number) {
    MPX_CHECK(declared.has(number), "hf", where(key), " with rope_type ", type, " has no ", number, "; add it");
    return declared.number(number, 0);
  };
  if (type == "linear") return set(settings, "rotary_seq_len_interpolation_factor", needed("factor"));
  if (type == "yarn") return add_yarn(config, declared, settings);
  if (type == "longrope") return add_longrope(config, declared, settings);
  set(settings, "use_rope_scaling", true);
  set(settings, "rope_scaling_factor", needed("factor"));
  set(settings, "rope_scaling_low_freq_factor", needed("low_freq_factor"));
  set(settings, "rope_scaling_high_freq_factor", needed("high_freq_factor"));
  set(settings, "rope_scaling_original_max_position_embeddings",
      declared.integer("original_max_position_embeddings", config.integer("max_position_embeddings", 2048)));
}

// Rotary positions: `rope_parameters` of version 5, optionally with an entry per layer type, or `rope_theta` and
// `rope_scaling` of version 4.
void add_rope(const ConfigReader& config, PartialRope partial, Settings& settings) {
  const char* const key = config.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const bool both = config.has("rope_parameters") && config.has("rope_scaling");
  MPX_CHECK(!both || config.value("rope_parameters") == config.value("rope_scaling"), "hf", where("rope_parameters"),
            " and rope_scaling are both present but differ: rope_scaling = ", config.value("rope_scaling").dump(),
            "; remove the wrong one (transformers uses rope_scaling)");
  const Json all = config.has(key) ? config.value(key) : Json::object();
  const bool by_layer_type = all.contains("full_attention") || all.contains("sliding_attention");
  const Json rope = by_layer_type ? all.value("full_attention", Json::object()) : all;
  MPX_CHECK(rope.is_object(), "hf", where(key), " is not an object: ", rope.dump(), "; correct the file");
  const ConfigReader declared(rope);
  set(settings, "position_embedding_type", "rope");
  set(settings, "rotary_base", declared.number("rope_theta", config.number("rope_theta", 10000.0)));
  const double share = declared.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0));
  MPX_CHECK(partial == PartialRope::read || share == 1, "hf", where("partial_rotary_factor"), " is ", share,
            ", which this family does not support; expected 1");
  set(settings, "rotary_percent", share);
  add_scaling(config, declared, key, settings);
  declared.refuse_unread(key);
}

}  // namespace

void set_text(Settings& settings, const char* key, const std::string& value) {
  const std::string prefix = std::string("model.") + key + "=";
  std::erase_if(settings, [&](const std::string& setting) { return setting.starts_with(prefix); });
  settings.push_back(prefix + value);
}

std::string exact(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

std::vector<bool> typed_layers(const ConfigReader& config, const char* type, const std::vector<bool>& otherwise) {
  if (!config.has("layer_types")) return otherwise;
  const Json& types = config.value("layer_types");
  config.require(types.is_array() && types.size() == otherwise.size(), "layer_types",
                 "a list with one word per layer");
  std::vector<bool> layers;
  for (const Json& word : types) {
    config.require(word == type || word == "full_attention", "layer_types",
                   base::concat("a list of ", type, " and full_attention"));
    layers.push_back(word == type);
  }
  return layers;
}

std::vector<bool> add_rotated_layers(const ConfigReader& config, Settings& settings) {
  const auto layers = static_cast<size_t>(num_layers(config));
  const int64_t interval = config.integer("no_rope_layer_interval", 4);
  config.require(interval > 0, "no_rope_layer_interval", "a number above 0");
  const Json& list = config.value("no_rope_layers");
  config.require(list.is_null() || (list.is_array() && list.size() == layers), "no_rope_layers",
                 "a list of 0 and 1, one per layer");
  std::vector<bool> rotated;
  for (size_t i = 0; i < layers; ++i) {
    if (list.is_array()) config.require(list[i] == 0 || list[i] == 1, "no_rope_layers", "a list of 0 and 1");
    rotated.push_back(list.is_array() ? list[i] == 1 : (static_cast<int64_t>(i) + 1) % interval != 0);
  }
  std::vector<bool> unrotated = rotated;
  unrotated.flip();
  if (std::find(unrotated.begin(), unrotated.end(), true) != unrotated.end())
    set(settings, "no_rope_freq", layer_pattern(unrotated));
  return rotated;
}

void add_windows(const ConfigReader& config, const std::vector<bool>& otherwise, Settings& settings) {
  const std::vector<bool> slides = typed_layers(config, "sliding_attention", otherwise);
  if (!config.has("sliding_window") || std::find(slides.begin(), slides.end(), true) == slides.end()) return;
  const int64_t window = config.integer("sliding_window");
  config.require(window > 0, "sliding_window", "a number above 0, or null");
  set(settings, "window_size", window - 1);
  if (std::find(slides.begin(), slides.end(), false) != slides.end())
    set(settings, "window_attn_skip_freq", layer_pattern(slides));
}

void add_local_base(const ConfigReader& config, double otherwise, Settings& settings) {
  double local = otherwise;
  if (const Json& rope = config.value("rope_parameters"); rope.is_object() && rope.contains("sliding_attention")) {
    const ConfigReader declared(rope.at("sliding_attention"));
    declared.require(declared.text("rope_type", "default") == "default", "rope_type",
                     "default for sliding_attention");
    local = declared.number("rope_theta", local);
    declared.refuse_unread("rope_parameters");
  }
  const bool windows = std::any_of(settings.begin(), settings.end(), [](const std::string& setting) {
    return setting.starts_with("model.window_size=");
  });
  if (windows) set(settings, "rotary_base_local", local);
}

void add_window(const ConfigReader& config, Window window, Settings& settings) {
  const auto layers = static_cast<size_t>(num_layers(config));
  if (window == Window::refused) {
    const int64_t positions = config.integer("max_position_embeddings", 2048);
    config.require(config.integer("sliding_window", positions) >= positions, "sliding_window",
                   "attention to all earlier positions (null)");
  } else if (window == Window::declared) {
    add_windows(config, std::vector<bool>(layers, true), settings);
  } else if (config.flag("use_sliding_window", false)) {
    std::vector<bool> slides(layers);
    for (size_t i = 0; i < layers; ++i)
      slides[i] = static_cast<int64_t>(i) >= config.integer("max_window_layers", 28);
    add_windows(config, slides, settings);
  } else {
    config.ignore({"sliding_window", "layer_types"});
  }
  if (window == Window::switched) config.ignore({"max_window_layers"});  // layer_types takes precedence
}

int64_t num_layers(const ConfigReader& config) {
  const int64_t layers = config.integer("num_hidden_layers");
  config.require(layers > 0 && layers <= 100000, "num_hidden_layers", "a number from 1 to 100000");
  return layers;
}

Settings sizes_and_positions(const ConfigReader& config, PartialRope partial, const char* epsilon) {
  Settings settings;
  set(settings, "family", "gpt");
  set(settings, "num_layers", num_layers(config));
  set(settings, "hidden_size", config.integer("hidden_size"));
  set(settings, "num_attention_heads", config.integer("num_attention_heads"));
  set(settings, "ffn_hidden_size", config.integer("intermediate_size"));
  set(settings, "vocab_size", config.integer("vocab_size"));
  set(settings, "max_position_embeddings", config.integer("max_position_embeddings", 2048));
  set(settings, "layernorm_epsilon", config.number(epsilon, 1e-6));
  set(settings, "untie_embeddings_and_output_weights", !config.flag("tie_word_embeddings", false));
  set(settings, "attention_dropout", config.number("attention_dropout", 0.0));
  set(settings, "init_method_std", config.number("initializer_range", 0.02));
  set(settings, "normalization", "RMSNorm");
  set(settings, "gated_linear_unit", true);
  add_rope(config, partial, settings);
  return settings;
}

void add_activation(const ConfigReader& config, const char* key, const std::string& otherwise, Settings& settings) {
  const std::string act = config.text(key, otherwise);
  const auto found = std::find_if(std::begin(kActivations), std::end(kActivations),
                                  [&](const ActivationName& name) { return name.theirs == act; });
  config.require(found != std::end(kActivations), key,
                 "silu, gelu, gelu_pytorch_tanh, gelu_new, quick_gelu, relu or relu2");
  set(settings, "activation", config::text_of(found->ours));
}

std::string activation_name(const config::Model& model) {
  return std::find_if(std::begin(kActivations), std::end(kActivations),
                      [&](const ActivationName& name) { return name.ours == model.activation; })
      ->theirs;
}

void add_heads(const ConfigReader& config, Settings& settings) {
  const int64_t hidden = config.integer("hidden_size"), heads = config.integer("num_attention_heads");
  set(settings, "num_query_groups", config.integer("num_key_value_heads", heads));
  set(settings, "kv_channels", config.integer("head_dim", hidden / std::max<int64_t>(1, heads)));
}

void add_biases(bool qkv, bool output, bool mlp, Settings& settings) {
  set(settings, "add_bias_linear", false);
  set(settings, "add_qkv_bias", qkv);
  set(settings, "add_attention_output_bias", output);
  set(settings, "add_mlp_bias", mlp);
}

Settings decoder_settings_without_heads(const ConfigReader& config, Window window, PartialRope partial) {
  Settings settings = sizes_and_positions(config, partial);
  add_activation(config, "hidden_act", "silu", settings);
  add_window(config, window, settings);
  return settings;
}

Settings decoder_settings(const ConfigReader& config, Window window, PartialRope partial) {
  Settings settings = decoder_settings_without_heads(config, window, partial);
  add_heads(config, settings);
  return settings;
}

}  // namespace metroplex::hf

#include "mcore/settings.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "config/experts.h"
#include "config/fields.h"
#include "megatron/flags.h"
#include "pickle/torch_file.h"

namespace metroplex::mcore {
namespace {

using config::Config;
using config::Field;
using config::Model;
using pickle::ValueWriter;

class NamespaceWriter {
 public:
  explicit NamespaceWriter(ValueWriter& writer) : writer_(writer) {}

  void none(const char* name) { key(name).none(); }
  void boolean(const std::string& name, bool value) { key(name).boolean(value); }
  void integer(const std::string& name, int64_t value) { key(name).integer(value); }
  void real(const std::string& name, double value) { key(name).real(value); }
  void text(const std::string& name, const std::string& value) { key(name).text(value); }
  ValueWriter& key(const std::string& name) {
    writer_.text(name);
    return writer_;
  }

 private:
  ValueWriter& writer_;
};

// Megatron writes None for most of these values, and rejects 0 in the others.
bool is_unset(const std::string& flag, const Field& field) {
  const std::string text = config::to_text(field);
  if (std::holds_alternative<std::string*>(field.member)) return text.empty();
  const auto& positive = megatron::positive_flags();
  const bool needs_value =
      flag.starts_with("--moe-") || std::find(positive.begin(), positive.end(), flag) != positive.end();
  if (const auto* number = std::get_if<int64_t*>(&field.member)) return **number == 0;
  if (const auto* number = std::get_if<double*>(&field.member)) return **number == 0 && needs_value;
  return text == "auto";
}

void write_value(const Field& field, ValueWriter& writer) {
  if (const auto* number = std::get_if<int64_t*>(&field.member)) writer.integer(**number);
  else if (const auto* real = std::get_if<double*>(&field.member)) writer.real(**real);
  else writer.text(config::to_text(field));
}

// A number, or one number per layer.
void write_layers(const std::string& pattern, const std::vector<bool>& layers, ValueWriter& writer) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(pattern.data(), pattern.data() + pattern.size(), number);
  if (pattern.empty()) return writer.none();
  if (error == std::errc() && end == pattern.data() + pattern.size()) return writer.integer(number);
  writer.begin_list();
  for (const bool layer : layers) writer.integer(layer ? 1 : 0);
  writer.end_list();
}

// Attributes of flags that set one key.
void write_single_keys(Config& config, NamespaceWriter& out) {
  std::map<std::string, Field> fields;
  for (const Field& field : config::fields(config)) fields.emplace(field.key(), field);
  for (const megatron::FlagRow& row : megatron::model_flag_rows()) {
    const std::string flag = row.flag, sets = row.sets;
    const size_t equals = sets.find('=');
    const auto found = fields.find(sets.substr(0, equals));
    if (is_left_out(flag) || is_layer_list(flag) || found == fields.end()) continue;
    const Attribute attribute = find_attribute(flag);
    const Field& field = found->second;
    if (row.take == megatron::ArgumentCount::kNone) {
      const bool is_given = config::to_text(field) == sets.substr(equals + 1);
      out.boolean(attribute.name, is_given == (attribute.given_for == "True"));
    } else if (flag == "--rope-type") {
      out.text(attribute.name, config.model.yarn() ? "yarn" : config.model.longrope() ? "longrope" : "rope");
    } else if (is_unset(flag, field)) {
      out.none(attribute.name.c_str());
    } else {
      write_value(field, out.key(attribute.name));
    }
  }
}

void write_layer_lists(const Model& model, NamespaceWriter& out) {
  std::vector<bool> unrotated = config::rope_layers(model);
  unrotated.flip();
  write_layers(model.moe_layer_freq, config::moe_layers(model), out.key("moe_layer_freq"));
  write_layers(model.window_attn_skip_freq, config::window_layers(model), out.key("window_attn_skip_freq"));
  write_layers(model.no_rope_freq, unrotated, out.key("no_rope_freq"));
}

// The inverse of translator_model.cpp. Other activations are left out.
void write_activation(const Model& model, NamespaceWriter& out) {
  using config::Activation;
  const bool gated = model.gated_linear_unit, tanh = model.activation == Activation::gelu_tanh && !gated;
  out.boolean("swiglu", gated && model.activation == Activation::silu);
  out.boolean("quick_geglu", gated && model.activation == Activation::quick_gelu);
  out.boolean("squared_relu", !gated && model.activation == Activation::squared_relu);
  out.boolean("bias_gelu_fusion", tanh && model.add_bias_linear);
  out.boolean("openai_gelu", tanh && !model.add_bias_linear);
}

void write_balancing(const Model& model, NamespaceWriter& out) {
  const std::vector<std::string> types = config::comma_list(model.moe_router_load_balancing_type);
  std::string problem;
  const auto coefficients = config::read_coefficients(model.moe_aux_loss_coeff, problem);
  if (types.size() == 1) {
    out.text("moe_router_load_balancing_type", types.front());
  } else {
    ValueWriter& list = out.key("moe_router_load_balancing_type");
    list.begin_list();
    for (const std::string& type : types) list.text(type);
    list.end_list();
  }
  if (!coefficients) return;
  if (coefficients->size() == 1) return out.real("moe_aux_loss_coeff", coefficients->front());
  ValueWriter& list = out.key("moe_aux_loss_coeff");
  list.begin_list();
  for (const double coefficient : *coefficients) list.real(coefficient);
  list.end_list();
}

void write_model(Config config, NamespaceWriter& out) {
  if (config.model.multi_latent_attention) config.model.rotary_interleaved = false;  // always so in read_settings
  const Model& model = config.model;
  write_single_keys(config, out);
  write_layer_lists(model, out);
  write_activation(model, out);
  write_balancing(model, out);
  const int64_t groups = model.num_query_groups > 0 ? model.num_query_groups : model.num_attention_heads;
  out.boolean("group_query_attention", !model.multi_latent_attention && groups != model.num_attention_heads);
  out.integer("num_query_groups", groups);
  out.text("normalization", model.normalization.text());
  out.text("position_embedding_type", model.position_embedding_type.text());
  out.boolean("use_rotary_position_embeddings", false);
  out.boolean("add_position_embedding", true);
  out.integer("encoder_num_layers", model.num_layers);
  out.integer("vocab_size", model.vocab_size);
  out.integer("padded_vocab_size", model.vocab_size);
  out.integer("make_vocab_size_divisible_by", model.make_vocab_size_divisible_by);
  if (model.window_size < 0) return out.none("window_size");
  out.key("window_size").integers({model.window_size, 0});
}

files::Dtype find_params_dtype(config::ParamsDtype dtype) {
  if (dtype == config::ParamsDtype::bf16) return files::Dtype::kBF16;
  return dtype == config::ParamsDtype::fp16 ? files::Dtype::kF16 : files::Dtype::kF32;
}

void write_run(const Config& config, const Progress& progress, NamespaceWriter& out) {
  const auto& parallel = config.parallel;
  out.integer("tensor_model_parallel_size", parallel.tp());
  out.integer("pipeline_model_parallel_size", parallel.pp());
  out.integer("context_parallel_size", parallel.context_parallel_size);
  out.integer("expert_model_parallel_size", parallel.expert_model_parallel_size);
  out.none("virtual_pipeline_model_parallel_size");
  out.boolean("bf16", config.precision.params_dtype == config::ParamsDtype::bf16);
  out.boolean("fp16", config.precision.params_dtype == config::ParamsDtype::fp16);
  pickle::write_dtype(out.key("params_dtype"), find_params_dtype(config.precision.params_dtype));
  out.integer("seq_length", config.train.seq_length);
  out.integer("micro_batch_size", config.train.micro_batch_size);
  out.integer("global_batch_size", config.train.global_batch_size);
  out.integer("iteration", progress.iteration);
  out.integer("consumed_train_samples", progress.consumed_samples);
  out.integer("consumed_valid_samples", 0);
  out.integer("seed", config.run.seed);
  out.text("optimizer", config.optim.optimizer);
  out.real("lr", config.optim.lr);
  out.real("weight_decay", config.optim.weight_decay);
  out.real("adam_beta1", config.optim.adam_beta1);
  out.real("adam_beta2", config.optim.adam_beta2);
  out.real("adam_eps", config.optim.adam_eps);
  out.text("tokenizer_type", "NullTokenizer");
  out.text("ckpt_format", "torch_dist");
  out.boolean("use_distributed_optimizer", true);
  out.boolean("no_save_optim", !progress.has_optimizer);
  out.boolean("no_save_rng", true);
}

}  // namespace

void write_arguments(const Config& config, const Progress& progress, ValueWriter& writer) {
  writer.global("argparse.Namespace");
  writer.integers({});
  writer.create();
  writer.begin_dict();
  NamespaceWriter out(writer);
  write_model(config, out);
  write_run(config, progress, out);
  writer.end_dict();
  writer.set_state();
}

}  // namespace metroplex::mcore

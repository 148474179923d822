#include "parity/spec.h"

#include <fstream>
#include <iterator>
#include <regex>
#include <set>

#include "base/error.h"
#include "config/load.h"
#include "config/validate.h"
#include "parity/cfg_keys.h"

namespace metroplex::parity {
namespace {

using Json = nlohmann::json;

void refuse_unknown(const Json& object, const std::set<std::string>& known, const std::string& where) {
  for (const auto& [key, value] : object.items()) {
    MPX_CHECK(known.count(key), "parity", where, ".", key, " = ", value.dump(),
              " is not something this build can replay");
  }
}

const std::set<std::string> kSpecModelKeys = {"num_layers",
                                              "hidden_size",
                                              "num_attention_heads",
                                              "num_query_groups",
                                              "kv_channels",
                                              "ffn_hidden_size",
                                              "tied",
                                              "activation",
                                              "position_embedding_type",
                                              "normalization",
                                              "gated_linear_unit",
                                              "add_bias_linear",
                                              "add_qkv_bias",
                                              "qk_layernorm",
                                              "rotary_base",
                                              "rotary_percent",
                                              "layernorm_epsilon",
                                              "kind",
                                              "max_position_embeddings"};

void read_model(const Json& m, config::Config& config) {
  const std::string kind = m.value("kind", "gpt");
  MPX_CHECK(kind == "gpt" || kind == "llama" || kind == "moe" || kind == "codegeex", "parity", "config.model.kind '",
            kind, "' is not something this build can replay");
  config::Model& out = config.model;
  // gpt: the family that accepts any mix of norms, positions, activations and biases; names are the same.
  out.family = kind == "codegeex" ? kind : "gpt";
  out.num_layers = m.at("num_layers");
  out.hidden_size = m.at("hidden_size");
  out.num_attention_heads = m.at("num_attention_heads");
  out.num_query_groups = m.value("num_query_groups", int64_t{0});
  out.kv_channels = m.value("kv_channels", int64_t{0});
  out.ffn_hidden_size = m.value("ffn_hidden_size", 4 * out.hidden_size);
  out.untie_embeddings_and_output_weights = !m.value("tied", true);
  out.activation = m.value("activation", "gelu");
  out.position_embedding_type = m.value("position_embedding_type", "learned_absolute");
  out.normalization = m.value("normalization", "LayerNorm");
  out.gated_linear_unit = m.value("gated_linear_unit", false);
  out.add_bias_linear = m.value("add_bias_linear", true);
  out.add_qkv_bias = m.value("add_qkv_bias", false);
  out.qk_layernorm = m.value("qk_layernorm", false);
  out.rotary_base = m.value("rotary_base", 10000.0);
  out.rotary_percent = m.value("rotary_percent", 1.0);
  out.layernorm_epsilon = m.value("layernorm_epsilon", 1e-5);
  out.make_vocab_size_divisible_by = 1;
  Json rest = m;  // may also contain Megatron's other options
  for (const std::string& key : kSpecModelKeys) rest.erase(key);
  apply_cfg(rest, config, "config.model");
}

// Python writes NaN and Infinity into JSON; they become null.
Json parse_with_nan(std::istream& stream) {
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  return Json::parse(std::regex_replace(text, std::regex("([:\\[,]\\s*)-?(NaN|Infinity)"), "$1null"));
}

bool is_fp16(const config::Config& config) { return config.precision.params_dtype == config::ParamsDtype::fp16; }

// Divisor of a rank's microbatch loss if gradients can overflow.
double loss_divisor(const config::Config& config, int64_t dp) {
  if (!is_fp16(config) || config.train.calculate_per_token_loss) return 1;
  return static_cast<double>(config.train.global_batch_size / (config.train.micro_batch_size * dp));
}

// `recorded`: the config on its recorded layout.
void apply_layout(const OtherLayout& other, const config::Config& recorded, int64_t recorded_nproc, Spec& spec) {
  config::Config& config = spec.config;
  if (!other.settings.empty()) config = config::parse(config::dump(config), other.settings);
  other.apply(config.parallel);
  other.apply(config.train);
  if (config.model.has_experts() && config.parallel.tp() > 1)
    config.parallel.sequence_parallel = true;  // not trained without
  config.run.nproc = spec.nproc;
  config = config::resolved(config, spec.nproc);
  config::check(config, spec.nproc);
  spec.loss_scale_ratio = loss_divisor(config, config::data_parallel_size(config.parallel, spec.nproc)) /
                          loss_divisor(recorded, config::data_parallel_size(recorded.parallel, recorded_nproc));
  config.precision.initial_loss_scale *= spec.loss_scale_ratio;
  MPX_CHECK(!is_fp16(config) || config.model.untie_embeddings_and_output_weights ||
                (config.parallel.pp() == 1) == (recorded.parallel.pp() == 1),
            "parity", "config.model.tied = true in fp16 was recorded with pp ", recorded.parallel.pp(),
            ", not with pp ", config.parallel.pp(),
            ": the two gradients of a tied table are added in fp16 on one stage and in fp32 on two, so other steps "
            "overflow; replay it with --pp ",
            recorded.parallel.pp());
}

}  // namespace

void OtherLayout::apply(config::Train& train) const {
  if (cuda_graph_impl.empty()) return;
  train.cuda_graph_impl = cuda_graph_impl;
  train.cuda_graph_modules = cuda_graph_modules;
  train.cuda_graph_warmup_steps = 1;
}

void OtherLayout::apply(config::Parallel& parallel) const {
  const auto set = [](int64_t& value, int64_t wanted) { value = wanted > 0 ? wanted : value; };
  if (pp > 0) parallel.virtual_pipeline_model_parallel_size = 1;
  if (tp > 0) parallel.expert_tensor_parallel_size = 0;
  set(parallel.tensor_model_parallel_size, tp);
  set(parallel.pipeline_model_parallel_size, pp);
  set(parallel.virtual_pipeline_model_parallel_size, vpp);
  set(parallel.expert_model_parallel_size, ep);
  set(parallel.expert_tensor_parallel_size, etp);
  parallel.sequence_parallel |= sequence_parallel;
  parallel.overlap_p2p_comm = parallel.vpp() > 1 && (parallel.overlap_p2p_comm || vpp > 0);
  if (!sharding_strategy.empty()) parallel.data_parallel_sharding_strategy = sharding_strategy;
}

Spec read_spec(const std::string& path, const OtherLayout& other) {
  std::ifstream stream(path);
  MPX_CHECK(stream.good(), "parity", "cannot read ", path);
  Spec spec;
  spec.json = parse_with_nan(stream);
  const Json& j = spec.json.at("config");
  refuse_unknown(j,
                 {"name",
                  "vocab",
                  "seq",
                  "mbs",
                  "gbs",
                  "iters",
                  "lr",
                  "min_lr",
                  "warmup_iters",
                  "decay_style",
                  "model",
                  "nproc",
                  "tp",
                  "pp",
                  "vpp",
                  "sp",
                  "ep",
                  "etp",
                  "ssd",
                  "mask_last",
                  "wd",
                  "clip",
                  "optimizer",
                  "precision",
                  "cfg",
                  "dist_opt",
                  "initial_loss_scale",
                  "loss_scale_window",
                  "hysteresis",
                  "min_loss_scale"},
                 "config");
  spec.nproc = other.nproc > 0 ? other.nproc : j.value("nproc", int64_t{1});
  spec.vocab = j.at("vocab");
  spec.seq = j.at("seq");
  spec.mbs = j.at("mbs");
  spec.gbs = j.at("gbs");
  spec.iters = j.at("iters");
  spec.mask_last = j.value("mask_last", int64_t{0});

  config::Config& config = spec.config;
  config.precision.params_dtype = j.value("precision", "fp32");  // options below depend on it
  read_model(j.at("model"), config);
  config.parallel.tensor_model_parallel_size = j.value("tp", int64_t{1});
  config.parallel.pipeline_model_parallel_size = j.value("pp", int64_t{1});
  config.parallel.virtual_pipeline_model_parallel_size =
      j.contains("vpp") && !j.at("vpp").is_null() ? j.at("vpp").get<int64_t>() : 1;
  config.parallel.expert_model_parallel_size = j.value("ep", int64_t{1});
  config.parallel.expert_tensor_parallel_size =
      j.contains("etp") && !j.at("etp").is_null() ? j.at("etp").get<int64_t>() : 0;
  config.parallel.sequence_parallel = j.value("sp", false);
  config.parallel.overlap_p2p_comm = config.parallel.vpp() > 1;
  config.model.vocab_size = spec.vocab;
  config.train.seq_length = spec.seq;
  config.train.micro_batch_size = spec.mbs;
  config.train.global_batch_size = spec.gbs;
  config.train.train_iters = spec.iters;
  config.train.log_num_zeros_in_grad = true;
  config.optim.optimizer = j.value("optimizer", "adam");
  config.optim.lr = j.at("lr");
  config.optim.min_lr = j.at("min_lr");
  config.optim.lr_warmup_iters = j.value("warmup_iters", int64_t{2});
  config.optim.lr_decay_style = j.value("decay_style", "cosine");
  config.optim.weight_decay = j.value("wd", 0.01);
  config.optim.clip_grad = j.value("clip", 1.0);
  config.data.mock_data = true;  // the rules require a source of data; the recipe's tokens are fed directly
  config.precision.initial_loss_scale = j.value("initial_loss_scale", config.precision.initial_loss_scale);
  config.precision.loss_scale_window = j.value("loss_scale_window", config.precision.loss_scale_window);
  config.precision.hysteresis = j.value("hysteresis", config.precision.hysteresis);
  config.precision.min_loss_scale = j.value("min_loss_scale", config.precision.min_loss_scale);
  if (j.value("dist_opt", false)) config.parallel.data_parallel_sharding_strategy = "optim";
  apply_cfg(j.value("cfg", Json::object()), config);
  apply_layout(other, config::Config(config), j.value("nproc", int64_t{1}), spec);
  return spec;
}

double recipe_weight(const std::string& name, bool one_dimensional, int64_t index) {
  uint32_t hash = ~0u;  // CRC-32 (zlib's) of the name
  for (const char c : name) {
    hash ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) hash = (hash >> 1) ^ ((hash & 1) ? 0xEDB88320u : 0u);
  }
  uint32_t x = static_cast<uint32_t>(static_cast<uint64_t>(index) * 2654435761ull + static_cast<uint32_t>(~hash));
  x ^= x >> 15;
  x = static_cast<uint32_t>(uint64_t{x} * 2246822519ull);
  x ^= x >> 13;
  const double u = (static_cast<double>(x) / 4294967296.0 - 0.5) * 2.0;
  if (name.size() >= 4 && name.compare(name.size() - 4, 4, "bias") == 0) return 0.02 * u;
  return one_dimensional ? 1.0 + 0.1 * u : 0.08 * u;
}

int64_t recipe_token(int64_t n, int64_t t, int64_t vocab) {
  return (37 * n + 11 * t + (n * t) % 17 + (t * t) % 5) % vocab;
}

}  // namespace metroplex::parity

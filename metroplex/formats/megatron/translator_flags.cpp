// Each flag's own keys, then the keys that depend on several flags.
#include "megatron/translator.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <sstream>
#include <tuple>

#include "base/digit_groups.h"
#include "base/error.h"
#include "config/derived.h"
#include "config/fields.h"
#include "config/load.h"
#include "megatron/cuda_graphs.h"
#include "megatron/flags.h"

namespace metroplex::megatron {

bool is_zero(const std::string& value) {
  const std::string text = base::without_digit_groups(value);
  double number = 1;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && stop == text.data() + text.size() && number == 0;
}

Arguments Translator::run() {
  if (whole_) {
    for (const char* pair : defaults()) derive(pair, "", "");
  }
  for (const GivenFlag& flag : flags_) apply(flag);
  heads();
  attention_variant();
  normalization();
  biases();
  activation();
  precision();
  logits();
  optimizer();
  optimizer_state();
  wsd_decay();
  attention_mask();
  sharding();
  gradient_sums();
  param_gather();
  recompute();
  experts();
  hybrid_layers();
  positions();
  latent_attention();
  tokenizer();
  evaluation();
  graphs();
  // auto selects nccl on machines with GPUs.
  if (later("backend") && pending_keys_["backend"] != "nccl")
    derive("run.backend=$", pending_keys_["backend"], "--distributed-backend");
  virtual_stages();
  if (whole_) recomputed_layers();
  if (whole_) whole_command();
  for (const auto& [key, value] : assigned_) out_.assignments.push_back(key + "=" + value);
  return std::move(out_);
}

void Translator::apply(const GivenFlag& given) {
  const FlagRow& row = *given.row;
  std::string value;
  for (const auto& word : given.values) {
    if (row.take == ArgumentCount::kList) value += (value.empty() ? "[" : ", ") + config::quoted(word);
    if (row.take != ArgumentCount::kList) value += (value.empty() ? "" : " ") + word;
  }
  if (row.take == ArgumentCount::kList) value += "]";
  const auto& positive = positive_flags();
  // Without --group-query-attention Megatron ignores --num-query-groups.
  const bool ignored = whole_ && row.sets == std::string("query_groups=$") &&
                       std::none_of(flags_.begin(), flags_.end(), [](const GivenFlag& flag) {
                         return std::string(flag.row->sets).find("gqa=true") != std::string::npos;
                       });
  const bool must_be_positive = !ignored && std::any_of(positive.begin(), positive.end(),
                                                        [&](const std::string& flag) { return flag == row.flag; });
  MPX_CHECK(!must_be_positive || !is_zero(value), "config", "Megatron arguments: ", row.flag, " ", value,
            ": must be above 0; omit it for the default of Megatron");
  std::istringstream pairs(row.sets);
  for (std::string pair; std::getline(pairs, pair, ';');) set(pair, value, row.flag);
}

// Sets one "key=value" of a flag. Two flags that set a key to different values exclude each other, so their order
// does not matter.
void Translator::set(const std::string& pair, const std::string& value, const std::string& flag) {
  const std::string key = pair.substr(0, pair.find('='));
  std::string text = pair.substr(pair.find('=') + 1);
  if (text == "$") text = value;
  const auto [first, is_first] = setters_.emplace(key, std::pair(flag, text));
  MPX_CHECK(is_first || first->second.second == text, "config", "Megatron arguments: ", first->second.first, " and ",
            flag, " are mutually exclusive: both set ", key, "; keep one");
  derive(pair, value, flag);
}

// The same without the exclusion check, for keys derived from several flags.
void Translator::derive(const std::string& pair, const std::string& value, const std::string& flag) {
  const std::string key = pair.substr(0, pair.find('='));
  std::string text = pair.substr(pair.find('=') + 1);
  if (text == "$") text = value;
  if (key.find('.') == std::string::npos) {
    pending_keys_[key] = text;
    return;
  }
  try {
    config::Draft().assign(key + "=" + text);
  } catch (const base::Error& error) {
    base::throw_error("config", base::concat("Megatron arguments: ", flag, ": ", base::message_of(error)));
  }
  assigned_[key] = text;
  if (!flag.empty()) out_.given_by[key] = flag + (value.empty() ? "" : " " + value);
}

void Translator::ignore(const std::string& flag, const std::string& why) {
  out_.notes.push_back(flag + ": ignored, as Megatron does " + why);
}

bool Translator::assigned(const char* key, const char* value) const {
  const auto found = assigned_.find(key);
  return found != assigned_.end() && found->second == value;
}

// Without --accumulate-allreduce-grads-in-fp32 Megatron accumulates fp16 gradients in fp16 and bf16 gradients in
// fp32.
void Translator::precision() {
  static constexpr const char* kGrads = "precision.main_grads_dtype";
  const auto grads = [&](const char* value, const char* flag) {
    derive(std::string(kGrads) + "=" + value, "", flag);
  };
  const std::string format = later("main_grads_dtype") ? pending_keys_["main_grads_dtype"] : "";
  MPX_CHECK(format.empty() || format == "fp32" || format == "bf16", "config",
            "Megatron arguments: --main-grads-dtype ", format, ": expected fp32 or bf16");
  const bool accumulates = later("grads_in_fp32");
  MPX_CHECK(!accumulates || format != "bf16", "config",
            "Megatron arguments: --accumulate-allreduce-grads-in-fp32 and --main-grads-dtype bf16 are mutually "
            "exclusive; keep one");
  if (later("fsdp_grads_dtype")) return fsdp_gradients();
  const bool reduces = later("grads_in_bf16") && (later("bf16") || !whole_);
  if (later("grads_in_bf16") && !reduces) ignore("--grad-reduce-in-bf16", "without --bf16");
  if (reduces) return grads("params", "--grad-reduce-in-bf16");
  if (accumulates) return grads("fp32", "--accumulate-allreduce-grads-in-fp32");
  if (format == "bf16") return grads("params", "--main-grads-dtype");
  if (whole_ && later("fp16")) return grads("params", "");
  if (!whole_ && format == "fp32") grads("fp32", "--main-grads-dtype");
}

// auto is the dtype of the parameters.
void Translator::fsdp_gradients() {
  static constexpr const char* kFlag = "--megatron-fsdp-main-grads-dtype";
  const std::string& format = pending_keys_["fsdp_grads_dtype"];
  if (whole_ && !later("fsdp")) return ignore(std::string(kFlag) + " " + format, "without --use-megatron-fsdp");
  const std::string own = later("bf16") ? "bf16" : later("fp16") ? "fp16" : whole_ ? "fp32" : "auto";
  MPX_CHECK(format == "fp32" || format == "auto" || format == own, "config", "Megatron arguments: ", kFlag, " ",
            format, ": expected fp32, auto or the format of the parameters");
  const bool rounds = own != "fp32" && format != "fp32";
  derive(std::string("precision.main_grads_dtype=") + (rounds ? "params" : "fp32"), "", kFlag);
}

// Logits of fp32 parameters are fp32 anyway.
void Translator::logits() {
  if (!later("logit_dtype")) return;
  const std::string& format = pending_keys_["logit_dtype"];
  const std::string flag = "--output-logit-dtype " + format;
  MPX_CHECK(format == "fp32" || format == "bf16", "config", "Megatron arguments: ", flag, ": expected bf16 or fp32");
  MPX_CHECK(format == "fp32" || later("bf16") || !whole_, "config", "Megatron arguments: ", flag,
            ": rounds the logits of parameters in another format; add --bf16, or use fp32");
  if (whole_ && !later("bf16") && !later("fp16")) return ignore(flag, "without --bf16 or --fp16");
  derive("precision.output_logit_dtype=$", format == "fp32" ? "fp32" : "params", "--output-logit-dtype");
}

// dist_muon is the old spelling of muon with --use-distributed-optimizer.
void Translator::optimizer() {
  if (!later("optimizer")) return;
  const bool sharded_muon = pending_keys_["optimizer"] == "dist_muon";
  derive("optim.optimizer=$", sharded_muon ? "muon" : pending_keys_["optimizer"], "--optimizer");
  if (sharded_muon) pending_keys_["sharded"] = "optim";
}

// Megatron's fp8 moments have a scale per tensor, ours have one per block.
void Translator::optimizer_state() {
  if (later("no_weight_decay_cond_type")) {
    MPX_CHECK(pending_keys_["no_weight_decay_cond_type"] == "apply_wd_to_qk_layernorm", "config",
              "Megatron arguments: --no-weight-decay-cond-type ", pending_keys_["no_weight_decay_cond_type"],
              ": expected apply_wd_to_qk_layernorm; use optim.param_groups for other exceptions");
    derive("optim.apply_wd_to_qk_layernorm=true", "", "--no-weight-decay-cond-type");
  }
  for (const char* moment : {"exp_avg_dtype", "exp_avg_sq_dtype"}) {
    if (!later(moment)) continue;
    std::string flag = std::string("--") + moment;
    std::replace(flag.begin(), flag.end(), '_', '-');
    derive(std::string("optim.") + moment + "=$", pending_keys_[moment] == "fp8" ? "8bit" : pending_keys_[moment],
           flag);
  }
  const config::Config config = draft();
  const bool remainders = later("precision_aware") && later("bf16") &&
                          config.optim.main_params_dtype == config::MainParamsDtype::fp32 &&
                          config.optim.optimizer == "adam";
  if (whole_ && remainders) derive("optim.store_param_remainders=true", "", "");
}

int64_t Translator::number(const std::string& key) const {
  const std::string text = base::without_digit_groups(assigned_.at(key));
  int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// A decay of 0 iterations keeps the learning rate up to --lr-decay-iters; the key's 0 would mean "unset".
void Translator::wsd_decay() {
  for (const std::string unit : {"iters", "samples"}) {
    const std::string key = "optim.lr_wsd_decay_" + unit, length = "train.train_" + unit;
    const bool used = assigned("optim.lr_decay_style", "WSD") && given(length.c_str());
    if (!whole_ || !used || !given(key.c_str()) || !is_zero(assigned_[key])) continue;
    const std::string flag = out_.given_by[key], decay = "optim.lr_decay_" + unit;
    MPX_CHECK(!given(decay.c_str()) || number(decay) >= number(length), "config", "Megatron arguments: ", flag,
              ": needs --lr-decay-", unit, " of at least the length of the run, ", number(length), ", not ",
              number(decay), "; increase it, or omit ", flag);
    derive("optim.lr_decay_style=constant", "", flag);
  }
}

std::string Translator::zero_strategy() {
  static constexpr const char* kStages[] = {"no_shard", "optim", "optim_grads", "optim_grads_params"};
  const std::string stage = pending_keys_["zero_stage"];
  MPX_CHECK(stage.size() == 1 && stage[0] >= '0' && stage[0] <= '3', "config", "Megatron arguments: --zero-stage ",
            stage, ": expected 0, 1, 2 or 3");
  return kStages[stage[0] - '0'];
}

// In a whole command --data-parallel-sharding-strategy has an effect only with FSDP.
void Translator::sharding() {
  const bool fsdp = later("fsdp"), counts = later("strategy") && (fsdp || !whole_);
  if (later("strategy") && !counts)
    ignore("--data-parallel-sharding-strategy " + pending_keys_["strategy"], "without --use-megatron-fsdp");
  // FSDP uses the distributed optimizer. The other options exclude each other.
  const bool zero = later("zero_stage"), torch = later("torch_fsdp2");
  MPX_CHECK(int{zero} + int{torch} + int{fsdp || later("sharded")} <= 1, "config",
            "Megatron arguments: --zero-stage, --use-torch-fsdp2 and --use-distributed-optimizer or "
            "--use-megatron-fsdp are mutually exclusive; keep one");
  const std::string strategy = counts             ? pending_keys_["strategy"]
                               : zero             ? zero_strategy()
                               : torch            ? torch_strategy()
                               : fsdp             ? "optim_grads_params"
                               : later("sharded") ? pending_keys_["sharded"]
                                                  : "";
  const char* flag = counts  ? "--data-parallel-sharding-strategy"
                     : zero  ? "--zero-stage"
                     : torch ? "--use-torch-fsdp2"
                     : fsdp  ? "--use-megatron-fsdp"
                             : "--use-distributed-optimizer";
  if (later("fsdp2_keeps_weights") && !torch)
    ignore("--torch-fsdp2-no-reshard-after-forward", "without --use-torch-fsdp2");
  if (!strategy.empty()) derive("parallel.data_parallel_sharding_strategy=$", strategy, flag);
  // In Megatron 0 means one bucket per parameter, like any size up to that of the smallest parameter.
  if (later("bucket_size"))
    derive("parallel.ddp_bucket_size=$", is_zero(pending_keys_["bucket_size"]) ? "1" : pending_keys_["bucket_size"],
           "--ddp-bucket-size");
  if (later("align_param_gather") && !whole_)
    derive("parallel.align_param_gather=$", pending_keys_["align_param_gather"], "--align-param-gather");
  const config::Parallel parallel = draft().parallel;
  if (whole_ && parallel.overlap_param_gather) {
    MPX_CHECK(later("sharded") || zero || fsdp, "config", "Megatron arguments: --overlap-param-gather: needs ",
              "--use-distributed-optimizer or --use-megatron-fsdp; add one, or leave it out");
    MPX_CHECK(parallel.overlap_grad_reduce || strategy.starts_with("optim_grads"), "config",
              "Megatron arguments: --overlap-param-gather: needs --overlap-grad-reduce; add it, or leave both out");
  }
  // The default is on; only the interleaved schedule uses it.
  const bool gathers = parallel.overlap_param_gather && parallel.sharding().gathers_updates();
  const bool on = !later("align_param_gather") || pending_keys_["align_param_gather"] == "true";
  if (whole_ && gathers && on && config::virtual_stages(parallel) > 1)
    derive("parallel.align_param_gather=true", "", "");
}

void Translator::gradient_sums() {
  static constexpr const char* kFlag = "--ddp-reduce-scatter-with-fp32-accumulation";
  if (!later("fp32_sums")) return;
  const config::Config config = draft();
  const bool half = config.precision.half() && config.precision.main_grads_dtype == config::MainGradsDtype::params;
  if (whole_ && !half) return ignore(kFlag, "with fp32 gradients");
  if (whole_ && !config.parallel.sharding().any()) return ignore(kFlag, "without --use-distributed-optimizer");
  derive("parallel.reduce_scatter_with_fp32_accumulation=true", "", kFlag);
}

// Other recipes gather in params_dtype, with the same results.
void Translator::param_gather() {
  static constexpr const char* kFlag = "--fp8-param-gather";
  if (!later("fp8_param_gather")) return;
  const config::Config config = draft();
  const std::vector<config::Recipe> recipes = config.precision.recipes();
  const bool gathers = std::any_of(recipes.begin(), recipes.end(), config::gathers_codes);
  if (whole_ && !gathers) return ignore(kFlag, "without --fp8-recipe delayed, tensorwise or blockwise");
  if (whole_ && !config.parallel.sharding().any()) return ignore(kFlag, "without --use-distributed-optimizer");
  if (whole_ && config.model.moe_enable_echo) return ignore(kFlag, "with --moe-enable-echo");
  derive("precision.fp8_param_gather=true", "", kFlag);
}

void Translator::recompute() {
  static constexpr const char* kGranularity = "memory.recompute_granularity=$";
  // validate_args overwrites --recompute-granularity.
  if (later("recompute_activations")) derive(kGranularity, "selective", "--recompute-activations");
  else if (later("granularity")) derive(kGranularity, pending_keys_["granularity"], "--recompute-granularity");
  if (later("full_recompute") || later("checkpoint_method")) {
    const char* flag = later("checkpoint_method") ? "--activations-checkpoint-method" : "--checkpoint-activations";
    const bool other =
        later("recompute_activations") || (later("granularity") && pending_keys_["granularity"] != "full");
    MPX_CHECK(!other, "config", "Megatron arguments: ", flag,
              " is full recomputation, which excludes --recompute-activations and --recompute-granularity "
              "selective; keep one");
    derive(kGranularity, "full", flag);
    if (!given("memory.recompute_method"))
      derive("memory.recompute_method=$", later("checkpoint_method") ? pending_keys_["checkpoint_method"] : "uniform",
             flag);
    if (!given("memory.recompute_num_layers")) derive("memory.recompute_num_layers=1", "", flag);
  }
  if (later("offload_layers") && !is_zero(pending_keys_["offload_layers"]))
    derive("memory.offload_activations=host", "", "--cpu-offloading-num-layers");
  std::string list = later("recompute_modules") ? pending_keys_["recompute_modules"] : "";
  if (later("moe_layer_recompute")) {
    MPX_CHECK(!assigned("memory.recompute_granularity", "full"), "config",
              "Megatron arguments: --moe-layer-recompute excludes --recompute-granularity full; omit it");
    derive("memory.recompute_granularity=selective", "", "--moe-layer-recompute");
    // Megatron adds moe to its default.
    list = list.empty() ? "[core_attn, moe]" : list.substr(0, list.size() - 1) + ", moe]";
  }
  if (!list.empty()) derive("memory.recompute_modules=$", list, "--recompute-modules");
}

// Removes a key whose flag Megatron ignores in this configuration.
void Translator::drop(const char* key, const char* why) {
  if (!given(key)) return;
  ignore(out_.given_by[key], why);
  out_.given_by.erase(key);
  assigned_.erase(key);
}

// The default was 1 up to release 3.0. Megatron recomputes a whole model chunk if the number exceeds its layers.
void Translator::recomputed_layers() {
  static constexpr const char *kKey = "memory.recompute_num_layers", *kFlag = "--recompute-num-layers";
  if (!assigned("memory.recompute_granularity", "full")) return;
  if (!given(kKey)) return derive(std::string(kKey) + "=1", "", kFlag);
  const config::Config config = draft();
  const config::Parallel& parallel = config.parallel;
  const bool uneven = parallel.decoder_first_pipeline_num_layers > 0 ||
                      parallel.decoder_last_pipeline_num_layers > 0 ||
                      parallel.account_for_embedding_in_pipeline_split ||
                      parallel.account_for_loss_in_pipeline_split || !parallel.pipeline_model_parallel_layout.empty();
  const int64_t chunks = parallel.pp() * config::virtual_stages(parallel);
  const int64_t layers = chunks > 0 ? config.model.num_layers / chunks : 0;
  if (!uneven && layers > 0 && number(kKey) > layers) derive(base::concat(kKey, "=", layers), "", kFlag);
}

// In Megatron zero iterations disable evaluation at any interval.
void Translator::evaluation() {
  if (assigned("train.eval_iters", "0")) derive("train.eval_interval=0", "", "--eval-iters");
}

std::vector<std::string> Translator::words(const std::string& name) const {
  std::string list = pending_keys_.at(name);
  std::replace(list.begin(), list.end(), ',', ' ');
  std::istringstream text(list);
  return {std::istream_iterator<std::string>(text), {}};
}

void Translator::graphs() {
  const char* names[] = {"cuda_graph_impl", "cuda_graph_modules", "cuda_graph_scope", "enable_cuda_graph",
                         "external_cuda_graph"};
  if (std::none_of(std::begin(names), std::end(names), [&](const char* name) { return later(name); })) return;
  CudaGraphOptions options;
  if (later("cuda_graph_impl")) options.impl = pending_keys_["cuda_graph_impl"];
  if (later("cuda_graph_modules")) options.modules = words("cuda_graph_modules");
  if (later("cuda_graph_scope")) options.scope = words("cuda_graph_scope");
  options.enable_cuda_graph = later("enable_cuda_graph");
  options.external_cuda_graph = later("external_cuda_graph");
  std::vector<config::Violation> wrong;
  options = migrate_options(options, wrong);
  if (!wrong.empty()) {
    std::string flag = wrong[0].key;
    std::replace(flag.begin(), flag.end(), '_', '-');
    base::throw_error("config", base::concat("Megatron arguments: --", flag, " ", wrong[0].value, ": ", wrong[0].rule,
                                             "; ", wrong[0].fix));
  }
  const bool named = later("cuda_graph_modules") || later("cuda_graph_scope"), none = options.impl == "none";
  if (!none || later("cuda_graph_impl")) derive("train.cuda_graph_impl=$", options.impl, "--cuda-graph-impl");
  std::string list;
  for (const std::string& word : options.modules) list += (list.empty() ? "" : ", ") + config::quoted(word);
  if (named && whole_ && none) return ignore("--cuda-graph-modules [" + list + "]", "without --cuda-graph-impl");
  if (named) derive("train.cuda_graph_modules=$", "[" + list + "]", "--cuda-graph-modules");
}

void Translator::virtual_stages() {
  MPX_CHECK(!later("no_overlap_p2p") || !later("overlap_p2p"), "config",
            "Megatron arguments: --overlap-p2p-communication and --no-overlap-p2p-communication are mutually "
            "exclusive; keep one");
  const bool layers = later("layers_per_virtual_stage"), stages = given(kVpp),
             layout = given("parallel.pipeline_model_parallel_layout");
  MPX_CHECK(int{layers} + int{stages} + int{layout} <= 1, "config",
            "Megatron arguments: at most one of --num-layers-per-virtual-pipeline-stage, "
            "--num-virtual-stages-per-pipeline-rank and --pipeline-model-parallel-layout is allowed");
  if (layers) {
    MPX_CHECK(
        !given("parallel.decoder_first_pipeline_num_layers") && !given("parallel.decoder_last_pipeline_num_layers"),
        "config",
        "Megatron arguments: uneven stages need --num-virtual-stages-per-pipeline-rank, not "
        "--num-layers-per-virtual-pipeline-stage");
    derive(std::string(kVpp) + "=" + std::to_string(count_virtual_stages()), "",
           "--num-layers-per-virtual-pipeline-stage");
  }
  if (!whole_ || later("no_overlap_p2p")) {
    if (later("no_overlap_p2p")) derive("parallel.overlap_p2p_comm=false", "", "--no-overlap-p2p-communication");
    if (later("overlap_p2p")) derive("parallel.overlap_p2p_comm=true", "", "--overlap-p2p-communication");
    return;
  }
  const bool interleaved = config::virtual_stages(draft().parallel) > 1;
  derive(std::string("parallel.overlap_p2p_comm=") + (interleaved ? "true" : "false"), "", "");
}

config::Config Translator::draft() const {
  config::Draft draft;
  for (const auto& [key, value] : assigned_) draft.assign(key + "=" + value);
  return draft.finish();
}

int64_t Translator::count_virtual_stages() {
  static constexpr const char* kFlag = "--num-layers-per-virtual-pipeline-stage";
  MPX_CHECK(given("model.num_layers") && (whole_ || given("parallel.pipeline_model_parallel_size")), "config",
            "Megatron arguments: ", kFlag, " needs --num-layers and --pipeline-model-parallel-size; or use ",
            "--num-virtual-stages-per-pipeline-rank");
  const config::Config config = draft();
  const std::string text = base::without_digit_groups(pending_keys_["layers_per_virtual_stage"]);
  int64_t each = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), each);
  MPX_CHECK(error == std::errc() && stop == text.data() + text.size(), "config", "Megatron arguments: ", kFlag, ": ",
            text, ": expected an integer, at least 1");
  const int64_t units = config.model.num_layers + (config.parallel.account_for_embedding_in_pipeline_split ? 1 : 0) +
                        (config.parallel.account_for_loss_in_pipeline_split ? 1 : 0);
  MPX_CHECK(each > 0 && config.parallel.pp() > 0 && units % config.parallel.pp() == 0 &&
                units / config.parallel.pp() % each == 0,
            "config", "Megatron arguments: ", kFlag, " ", each, " does not divide the ", units, " layers over ",
            config.parallel.pp(), " pipeline stages; choose a divisor of the layers of a stage");
  MPX_CHECK(config.parallel.pp() > 1 || units == each, "config", "Megatron arguments: ", kFlag, " ", each,
            " needs --num-layers and --pipeline-model-parallel-size above 1; increase it, or omit the flag");
  return units / config.parallel.pp() / each;
}

void Translator::whole_command() {
  std::string missing;
  for (const char* key : required_keys()) {
    if (given(key)) continue;
    std::string flag;
    for (const FlagRow& row : flag_table()) {
      if (flag.empty() && std::string(row.sets) == std::string(key) + "=$") flag = row.flag;
    }
    missing += (missing.empty() ? "" : ", ") + flag;
  }
  MPX_CHECK(missing.empty(), "config", "Megatron arguments: missing ", missing, "; Megatron has no default for them");
  const bool by_iterations = given("train.train_iters");
  MPX_CHECK(!by_iterations || !given("train.train_samples"), "config",
            "Megatron arguments: --train-iters and --train-samples are mutually exclusive; keep one");
  const std::string unit = by_iterations ? "iters" : "samples", warmup = "optim.lr_warmup_" + unit;
  MPX_CHECK(!given("optim.lr_warmup_fraction") || !given(warmup.c_str()) || is_zero(assigned_[warmup]), "config",
            "Megatron arguments: --lr-warmup-fraction and --lr-warmup-", unit, " are mutually exclusive; keep one");
  for (const auto& [interval, flag] : {std::pair("checkpoint.save_interval", "--save-interval"),
                                       std::pair("checkpoint.save_retain_interval", "--save-retain-interval")}) {
    MPX_CHECK(!given("checkpoint.save") || !given(interval) || !is_zero(assigned_[interval]), "config",
              "Megatron arguments: ", flag, " 0: must be above 0 with --save; omit it");
  }
  const config::Model m = draft().model;
  const bool llama = m.position_embedding_type == config::PositionEmbedding::rope &&
                     m.normalization == config::Normalization::RMSNorm && m.activation == config::Activation::silu &&
                     m.gated_linear_unit && !m.add_bias_linear;
  if (llama) assigned_["model.family"] = "llama";
}

Arguments translate(const std::vector<GivenFlag>& flags, Form form) { return Translator(flags, form).run(); }

}  // namespace metroplex::megatron

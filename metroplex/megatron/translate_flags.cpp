// Assignments of a command line: each flag's own keys, then the keys that depend on several flags, as validate_args
// and core_transformer_config_from_args of Megatron derive them.
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

static bool is_zero(const std::string& value) {
  const std::string text = base::without_digit_groups(value);
  double number = 1;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && stop == text.data() + text.size() && number == 0;
}

namespace {

class Translator {
 public:
  Translator(const std::vector<GivenFlag>& flags, Form form) : flags_(flags), whole_(form == Form::kWholeCommand) {}

  Arguments run() {
    if (whole_) {
      for (const char* pair : defaults()) derive(pair, "", "");
    }
    for (const GivenFlag& flag : flags_) apply(flag);
    heads();
    normalization();
    activation();
    precision();
    optimizer();
    optimizer_state();
    wsd_decay();
    attention_mask();
    decoupled_rates();
    sharding();
    recompute();
    experts();
    positions();
    latent_attention();
    tokenizer();
    evaluation();
    graphs();
    // auto is nccl on machines with GPUs.
    if (later("backend") && later_["backend"] != "nccl")
      derive("run.backend=$", later_["backend"], "--distributed-backend");
    virtual_stages();
    if (whole_) whole_command();
    for (const auto& [key, value] : assigned_) out_.assignments.push_back(key + "=" + value);
    return std::move(out_);
  }

 private:
  void apply(const GivenFlag& given) {
    const FlagRow& row = *given.row;
    std::string value;
    for (const auto& word : given.values) {
      if (row.take == Take::kList) value += (value.empty() ? "[" : ", ") + config::quoted(word);
      if (row.take != Take::kList) value += (value.empty() ? "" : " ") + word;
    }
    if (row.take == Take::kList) value += "]";
    const auto& positive = positive_flags();
    const bool must_be_positive =
        std::any_of(positive.begin(), positive.end(), [&](const std::string& flag) { return flag == row.flag; });
    MPX_CHECK(!must_be_positive || !is_zero(value), "config", "Megatron arguments: ", row.flag, " ", value,
              ": must be above 0; leave it out for Megatron's default");
    std::istringstream pairs(row.sets);
    for (std::string pair; std::getline(pairs, pair, ';');) set(pair, value, row.flag);
  }

  // Sets one "key=value" of a flag. Two flags that set a key to different values exclude each other, so that their
  // order never matters.
  void set(const std::string& pair, const std::string& value, const std::string& flag) {
    const std::string key = pair.substr(0, pair.find('='));
    std::string text = pair.substr(pair.find('=') + 1);
    if (text == "$") text = value;
    const auto [first, is_first] = setters_.emplace(key, std::pair(flag, text));
    MPX_CHECK(is_first || first->second.second == text, "config", "Megatron arguments: ", first->second.first,
              " and ", flag, " exclude each other: both set ", key, "; keep one");
    derive(pair, value, flag);
  }

  // The same without that check: for keys that follow from several flags.
  void derive(const std::string& pair, const std::string& value, const std::string& flag) {
    const std::string key = pair.substr(0, pair.find('='));
    std::string text = pair.substr(pair.find('=') + 1);
    if (text == "$") text = value;
    if (key.find('.') == std::string::npos) {
      later_[key] = text;
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

  void ignore(const std::string& flag, const std::string& why) {
    out_.notes.push_back(flag + ": ignored, as Megatron does " + why);
  }

  bool later(const char* key) const { return later_.contains(key); }
  bool given(const char* key) const { return out_.given_by.contains(key); }
  bool assigned(const char* key, const char* value) const {
    const auto found = assigned_.find(key);
    return found != assigned_.end() && found->second == value;
  }

  // In a whole command --num-query-groups has an effect only next to --group-query-attention, where 1 is its default.
  void heads() {
    if (later("head_type")) {
      const std::string& type = later_["head_type"];
      MPX_CHECK(type == "multiquery" || type == "multihead", "config", "Megatron arguments: --attention-head-type ",
                type, ": expected multiquery or multihead");
      MPX_CHECK(!later("gqa"), "config",
                "Megatron arguments: --attention-head-type excludes --group-query-attention and "
                "--num-key-value-heads; keep one");
      if (type == "multiquery") derive("model.num_query_groups=1", "", "--attention-head-type");
    }
    if (whole_ && later("query_groups") && !later("gqa"))
      ignore("--num-query-groups " + later_["query_groups"], "without --group-query-attention");
    if (later("gqa") || (later("query_groups") && !whole_))
      derive("model.num_query_groups=$", later("query_groups") ? later_["query_groups"] : "1", "--num-query-groups");
  }

  // Megatron-DeepSpeed writes the values in lower case.
  void normalization() {
    if (!later("normalization")) return;
    const std::string& name = later_["normalization"];
    derive("model.normalization=$",
           name == "rmsnorm"     ? "RMSNorm"
           : name == "layernorm" ? "LayerNorm"
                                 : name,
           "--normalization");
  }

  // The fused bias + GELU is the tanh form; without biases, or with the fusion off, it is the exact one.
  void activation() {
    if (later("squared_relu")) return derive("model.activation=squared_relu", "", "--squared-relu");
    if (later("quick_geglu") || later("swiglu")) {
      const char* flag = later("quick_geglu") ? "--quick-geglu" : "--swiglu";
      derive(later("quick_geglu") ? "model.activation=quick_gelu" : "model.activation=silu", "", flag);
      derive("model.gated_linear_unit=true", "", flag);
      // Megatron narrows the MLP to 8/3 of hidden_size for --swiglu only.
      if (whole_ && later("quick_geglu") && !given("model.ffn_hidden_size"))
        derive("model.ffn_hidden_size=$", std::to_string(4 * draft().model.hidden_size), flag);
      return;
    }
    if (later("openai_gelu")) return derive("model.activation=gelu_tanh", "", "--openai-gelu");
    const bool exact = later("no_gelu_fusion") || assigned("model.add_bias_linear", "false");
    if (whole_) derive(exact ? "model.activation=gelu" : "model.activation=gelu_tanh", "", "");
    if (!whole_ && later("no_gelu_fusion")) derive("model.activation=gelu", "", "--no-bias-gelu-fusion");
  }

  // Without --accumulate-allreduce-grads-in-fp32 Megatron adds fp16 gradients up in fp16, bf16 ones in fp32.
  void precision() {
    static constexpr const char* kGrads = "precision.main_grads_dtype";
    const auto grads = [&](const char* value, const char* flag) {
      derive(std::string(kGrads) + "=" + value, "", flag);
    };
    const std::string format = later("main_grads_dtype") ? later_["main_grads_dtype"] : "";
    MPX_CHECK(format.empty() || format == "fp32" || format == "bf16", "config",
              "Megatron arguments: --main-grads-dtype ", format, ": expected fp32 or bf16");
    const bool accumulates = later("grads_in_fp32");
    MPX_CHECK(!accumulates || format != "bf16", "config",
              "Megatron arguments: --accumulate-allreduce-grads-in-fp32 and --main-grads-dtype bf16 exclude each "
              "other; keep one");
    if (later("fsdp_grads_dtype")) return fsdp_gradients();
    const bool reduces = later("grads_in_bf16") && (later("bf16") || !whole_);
    if (later("grads_in_bf16") && !reduces) ignore("--grad-reduce-in-bf16", "without --bf16");
    if (reduces) return grads("params", "--grad-reduce-in-bf16");
    if (accumulates) return grads("fp32", "--accumulate-allreduce-grads-in-fp32");
    if (format == "bf16") return grads("params", "--main-grads-dtype");
    if (whole_ && later("fp16")) return grads("params", "");
    if (!whole_ && format == "fp32") grads("fp32", "--main-grads-dtype");
  }

  // auto is the parameters' format.
  void fsdp_gradients() {
    static constexpr const char* kFlag = "--megatron-fsdp-main-grads-dtype";
    const std::string& format = later_["fsdp_grads_dtype"];
    if (whole_ && !later("fsdp")) return ignore(std::string(kFlag) + " " + format, "without --use-megatron-fsdp");
    const std::string own = later("bf16") ? "bf16" : later("fp16") ? "fp16" : whole_ ? "fp32" : "auto";
    MPX_CHECK(format == "fp32" || format == "auto" || format == own, "config", "Megatron arguments: ", kFlag, " ",
              format, ": expected fp32, auto or the format of the parameters");
    const bool rounds = own != "fp32" && format != "fp32";
    derive(std::string("precision.main_grads_dtype=") + (rounds ? "params" : "fp32"), "", kFlag);
  }

  // dist_muon is the old spelling of muon with --use-distributed-optimizer.
  void optimizer() {
    if (!later("optimizer")) return;
    const bool sharded_muon = later_["optimizer"] == "dist_muon";
    derive("optim.optimizer=$", sharded_muon ? "muon" : later_["optimizer"], "--optimizer");
    if (sharded_muon) later_["sharded"] = "optim";
  }

  // Megatron's fp8 moments have a scale per tensor, ours one per block.
  void optimizer_state() {
    if (later("no_weight_decay_cond_type")) {
      MPX_CHECK(later_["no_weight_decay_cond_type"] == "apply_wd_to_qk_layernorm", "config",
                "Megatron arguments: --no-weight-decay-cond-type ", later_["no_weight_decay_cond_type"],
                ": expected apply_wd_to_qk_layernorm; use optim.param_groups for other exceptions");
      derive("optim.apply_wd_to_qk_layernorm=true", "", "--no-weight-decay-cond-type");
    }
    for (const char* moment : {"exp_avg_dtype", "exp_avg_sq_dtype"}) {
      if (!later(moment)) continue;
      std::string flag = std::string("--") + moment;
      std::replace(flag.begin(), flag.end(), '_', '-');
      derive(std::string("optim.") + moment + "=$", later_[moment] == "fp8" ? "8bit" : later_[moment], flag);
    }
    const config::Config c = draft();
    const bool remainders = later("precision_aware") && later("bf16") &&
                            c.optim.main_params_dtype == config::MainParamsDtype::fp32 && c.optim.optimizer == "adam";
    if (whole_ && remainders) derive("optim.store_param_remainders=true", "", "");
  }

  int64_t number(const std::string& key) const {
    const std::string text = base::without_digit_groups(assigned_.at(key));
    int64_t value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
  }

  // A decay of 0 iterations keeps the rate up to --lr-decay-iters; the key's 0 would mean "not given".
  void wsd_decay() {
    for (const std::string unit : {"iters", "samples"}) {
      const std::string key = "optim.lr_wsd_decay_" + unit, length = "train.train_" + unit;
      const bool used = assigned("optim.lr_decay_style", "WSD") && given(length.c_str());
      if (!whole_ || !used || !given(key.c_str()) || !is_zero(assigned_[key])) continue;
      const std::string flag = out_.given_by[key], decay = "optim.lr_decay_" + unit;
      MPX_CHECK(!given(decay.c_str()) || number(decay) >= number(length), "config", "Megatron arguments: ", flag,
                " = 0: needs --lr-decay-", unit, " of at least the length of the run, ", number(length), ", not ",
                number(decay), "; raise it, or leave ", flag, " out");
      derive("optim.lr_decay_style=constant", "", flag);
    }
  }

  // Without a mask from the data Megatron's attention is causal over the whole sample.
  void attention_mask() {
    if (whole_ && later("no_mask"))
      drop("data.reset_attention_mask", "with --no-create-attention-mask-in-dataloader");
  }

  // ZeRO stages of DeepSpeed.
  std::string zero_strategy() {
    static constexpr const char* kStages[] = {"no_shard", "optim", "optim_grads", "optim_grads_params"};
    const std::string stage = later_["zero_stage"];
    MPX_CHECK(stage.size() == 1 && stage[0] >= '0' && stage[0] <= '3', "config", "Megatron arguments: --zero-stage ",
              stage, ": expected 0, 1, 2 or 3");
    return kStages[stage[0] - '0'];
  }

  std::string torch_strategy() const { return later("fsdp2_keeps_weights") ? "optim_grads" : "optim_grads_params"; }

  // In a whole command --data-parallel-sharding-strategy has an effect only with FSDP.
  void sharding() {
    const bool fsdp = later("fsdp"), counts = later("strategy") && (fsdp || !whole_);
    if (later("strategy") && !counts)
      ignore("--data-parallel-sharding-strategy " + later_["strategy"], "without --use-megatron-fsdp");
    // FSDP uses the distributed optimizer; the other ways exclude each other.
    const bool zero = later("zero_stage"), torch = later("torch_fsdp2");
    MPX_CHECK(int{zero} + int{torch} + int{fsdp || later("sharded")} <= 1, "config",
              "Megatron arguments: --zero-stage, --use-torch-fsdp2 and --use-distributed-optimizer or "
              "--use-megatron-fsdp exclude each other; keep one");
    const std::string strategy = counts             ? later_["strategy"]
                                 : zero             ? zero_strategy()
                                 : torch            ? torch_strategy()
                                 : fsdp             ? "optim_grads_params"
                                 : later("sharded") ? later_["sharded"]
                                                    : "";
    const char* flag = counts  ? "--data-parallel-sharding-strategy"
                       : zero  ? "--zero-stage"
                       : torch ? "--use-torch-fsdp2"
                       : fsdp  ? "--use-megatron-fsdp"
                               : "--use-distributed-optimizer";
    if (later("fsdp2_keeps_weights") && !torch)
      ignore("--torch-fsdp2-no-reshard-after-forward", "without --use-torch-fsdp2");
    if (!strategy.empty()) derive("parallel.data_parallel_sharding_strategy=$", strategy, flag);
    // Megatron's 0 is one bucket per parameter, as is any size up to that of the smallest one.
    if (later("bucket_size"))
      derive("parallel.ddp_bucket_size=$", is_zero(later_["bucket_size"]) ? "1" : later_["bucket_size"],
             "--ddp-bucket-size");
    if (later("align_param_gather") && !whole_)
      derive("parallel.align_param_gather=$", later_["align_param_gather"], "--align-param-gather");
    // On by default; only the interleaved schedule reads it.
    const config::Parallel p = draft().parallel;
    const bool gathers = p.overlap_param_gather && p.sharding().gathers_updates();
    const bool on = !later("align_param_gather") || later_["align_param_gather"] == "true";
    if (whole_ && gathers && on && config::virtual_stages(p) > 1) derive("parallel.align_param_gather=true", "", "");
  }

  void recompute() {
    static constexpr const char* kGranularity = "memory.recompute_granularity=$";
    // validate_args overwrites --recompute-granularity.
    if (later("recompute_activations")) derive(kGranularity, "selective", "--recompute-activations");
    else if (later("granularity")) derive(kGranularity, later_["granularity"], "--recompute-granularity");
    if (later("full_recompute") || later("checkpoint_method")) {
      const char* flag = later("checkpoint_method") ? "--activations-checkpoint-method" : "--checkpoint-activations";
      const bool other = later("recompute_activations") || (later("granularity") && later_["granularity"] != "full");
      MPX_CHECK(!other, "config", "Megatron arguments: ", flag,
                " is full recomputation, which excludes --recompute-activations and --recompute-granularity "
                "selective; keep one");
      derive(kGranularity, "full", flag);
      if (!given("memory.recompute_method"))
        derive("memory.recompute_method=$", later("checkpoint_method") ? later_["checkpoint_method"] : "uniform",
               flag);
      if (!given("memory.recompute_num_layers")) derive("memory.recompute_num_layers=1", "", flag);
    }
    if (later("offload_layers") && !is_zero(later_["offload_layers"]))
      derive("memory.offload_activations=host", "", "--cpu-offloading-num-layers");
    std::string list = later("recompute_modules") ? later_["recompute_modules"] : "";
    if (later("moe_layer_recompute")) {
      MPX_CHECK(!assigned("memory.recompute_granularity", "full"), "config",
                "Megatron arguments: --moe-layer-recompute excludes --recompute-granularity full; leave it out");
      derive("memory.recompute_granularity=selective", "", "--moe-layer-recompute");
      // Megatron adds to its default.
      list = list.empty() ? "[core_attn, moe]" : list.substr(0, list.size() - 1) + ", moe]";
    }
    if (!list.empty()) derive("memory.recompute_modules=$", list, "--recompute-modules");
  }

  // Megatron's flex selects between libraries that send rows as alltoall does; hybridep with a capacity per rank uses
  // buffers of fixed size.
  void experts() {
    static constexpr const char* kDispatcher = "--moe-token-dispatcher-type";
    const bool fixed = later("flex_backend") && later_["flex_backend"] == "hybridep" && later("rank_capacity");
    if (later("rank_capacity"))
      derive("model.moe_expert_rank_capacity_factor=$", later_["rank_capacity"], "--moe-expert-rank-capacity-factor");
    if (later("dispatcher") && later_["dispatcher"] == "flex" && fixed) {
      derive("model.moe_token_dispatcher_type=static_buffer", "", kDispatcher);
    } else if (later("dispatcher")) {
      const std::string& type = later_["dispatcher"];
      const bool sends = type == "flex" || type == "alltoall_seq";
      derive("model.moe_token_dispatcher_type=$", sends ? "alltoall" : type, kDispatcher);
    }
    if (later("shared_expert")) {
      MPX_CHECK(later("shared_width") || !whole_, "config",
                "Megatron arguments: --enable-shared-expert needs --shared-moe-ffn-hidden-size; add it");
      if (later("shared_width"))
        derive("model.moe_shared_expert_intermediate_size=$", later_["shared_width"], "--shared-moe-ffn-hidden-size");
      derive("model.moe_shared_expert_gate=true", "", "--enable-shared-expert");
    } else if (later("shared_width") && !whole_) {
      derive("model.moe_shared_expert_intermediate_size=$", later_["shared_width"], "--shared-moe-ffn-hidden-size");
    } else if (later("shared_width")) {
      ignore("--shared-moe-ffn-hidden-size " + later_["shared_width"], "without --enable-shared-expert");
    }
    const std::tuple<const char*, const char*, const char*> lists[] = {
        {"cp_comm_type", "parallel.cp_comm_type=$", "--cp-comm-type"},
        {"context_levels", "parallel.hierarchical_context_parallel_sizes=$", "--hierarchical-context-parallel-sizes"},
        {"balancing", "model.moe_router_load_balancing_type=$", "--moe-router-load-balancing-type"},
        {"aux_loss_coeff", "model.moe_aux_loss_coeff=$", "--moe-aux-loss-coeff"}};
    for (const auto& [name, pair, flag] : lists) {
      if (!later(name)) continue;
      std::string list = later_[name];
      std::replace(list.begin(), list.end(), ' ', ',');
      derive(pair, list, flag);
    }
  }

  // Megatron's pair (earlier, later) of positions; our queries never attend to later ones.
  void window() {
    if (!later("window")) return;
    std::string text = later_["window"], first, second;
    text.erase(std::remove_if(text.begin(), text.end(), [](char c) { return c == '(' || c == ')' || c == ' '; }),
               text.end());
    const size_t comma = text.find(',');
    if (comma != std::string::npos) first = text.substr(0, comma), second = text.substr(comma + 1);
    MPX_CHECK(comma != std::string::npos && second == "0", "config", "Megatron arguments: --window-size ",
              later_["window"], ": expected two numbers with a comma, of which the second, later positions, is 0");
    derive("model.window_size=$", first, "--window-size");
  }

  // --use-rotary-position-embeddings wins over any type. --no-position-embedding only removes the learned table.
  void positions() {
    window();
    static constexpr const char* kType = "model.position_embedding_type=$";
    const std::string type = later("rotary") ? "rope" : later("position_type") ? later_["position_type"] : "";
    MPX_CHECK(!later("no_position") || type == "rope", "config",
              "Megatron arguments: --no-position-embedding: only accepted with --position-embedding-type rope; use "
              "--position-embedding-type none");
    if (type == "yarn") yarn_type();
    yarn_frequencies(type == "yarn");
    if (type == "yarn") return;
    if (!type.empty())
      derive(kType, type, later("rotary") ? "--use-rotary-position-embeddings" : "--position-embedding-type");
  }

  // Megatron rotates whole heads then.
  void yarn_type() {
    static constexpr const char* kFlag = "--position-embedding-type";
    MPX_CHECK(!assigned("model.multi_latent_attention", "true"), "config", "Megatron arguments: ", kFlag,
              " yarn excludes --multi-latent-attention; use --rope-type yarn");
    derive("model.position_embedding_type=rope", "", kFlag);
    derive("model.rope_type=yarn", "", kFlag);
    for (const char* key : {"model.rotary_percent", "model.rotary_seq_len_interpolation_factor",
                            "model.use_rope_scaling", "model.rope_scaling_factor"})
      drop(key, "with --position-embedding-type yarn");
  }

  void yarn_frequencies(bool used) {
    const std::tuple<const char*, const char*, const char*> keys[] = {
        {"yarn_positions", "model.original_max_position_embeddings=$", "--yarn-original-max-position-embeddings"},
        {"yarn_beta_fast", "model.beta_fast=$", "--yarn-beta-fast"},
        {"yarn_beta_slow", "model.beta_slow=$", "--yarn-beta-slow"},
        {"yarn_rounds", "model.yarn_correction_range_round_to_int=$", "--yarn-correction-range-round-to-int"}};
    for (const auto& [name, pair, flag] : keys) {
      if (!later(name)) continue;
      if (used || !whole_) derive(pair, later_[name], flag);
      else ignore(std::string(flag) + " " + later_[name], "without --position-embedding-type yarn");
    }
  }

  // Removes a key of flags that Megatron ignores here.
  void drop(const char* key, const char* why) {
    if (!given(key)) return;
    ignore(out_.given_by[key], why);
    out_.given_by.erase(key);
    assigned_.erase(key);
  }

  // Megatron builds the rotary table of latent attention without these.
  void latent_attention() {
    if (!whole_ || !assigned("model.multi_latent_attention", "true")) return;
    static constexpr const char* kWhy = "with --multi-latent-attention";
    drop("model.use_rope_scaling", kWhy);
    drop("model.rope_scaling_factor", kWhy);
    drop("model.rotary_seq_len_interpolation_factor", kWhy);
    if (!assigned("model.rope_type", "rope")) drop("model.rotary_percent", "with --rope-type yarn");
    MPX_CHECK(!given("model.rotary_interleaved"), "config",
              "Megatron arguments: --rotary-interleaved: not implemented with --multi-latent-attention, where "
              "Megatron pairs channels of different frequencies; leave it out");
  }

  // Megatron's decoupled_min_lr is min_lr unless given.
  void decoupled_rates() {
    const auto least = assigned_.find("optim.min_lr");
    if (given("optim.decoupled_lr") && !given("optim.decoupled_min_lr") && least != assigned_.end())
      derive("optim.decoupled_min_lr=$", least->second, "--min-lr");
  }

  // GPT2BPETokenizer is the default of pretrain_gpt.py, made of --vocab-file and --merge-file.
  void tokenizer() {
    const bool files = given("data.vocab_file") || given("data.merge_file");
    if (!later("tokenizer") && files && whole_) later_["tokenizer"] = "GPT2BPETokenizer";
    const std::string name = later("tokenizer") ? later_["tokenizer"] : "";
    for (const auto& [theirs, ours] : tokenizers()) {
      if (name == theirs) derive(std::string("data.tokenizer_type=") + ours, "", "--tokenizer-type");
    }
    if (!later("vocab_size")) return;
    const bool own_vocabulary = whole_ && !name.empty() && name != "NullTokenizer" && name != "ByteLevelTokenizer";
    if (own_vocabulary)
      return ignore("--vocab-size " + later_["vocab_size"], "with " + name + ", which has a vocabulary");
    derive("model.vocab_size=$", later_["vocab_size"], "--vocab-size");
  }

  // Zero iterations are Megatron's way to have no evaluation, at any interval.
  void evaluation() {
    if (assigned("train.eval_iters", "0")) derive("train.eval_interval=0", "", "--eval-iters");
  }

  std::vector<std::string> words(const std::string& name) const {
    std::string list = later_.at(name);
    std::replace(list.begin(), list.end(), ',', ' ');
    std::istringstream text(list);
    return {std::istream_iterator<std::string>(text), {}};
  }

  void graphs() {
    const char* names[] = {"cuda_graph_impl", "cuda_graph_modules", "cuda_graph_scope", "enable_cuda_graph",
                           "external_cuda_graph"};
    if (std::none_of(std::begin(names), std::end(names), [&](const char* name) { return later(name); })) return;
    CudaGraphOptions options;
    if (later("cuda_graph_impl")) options.impl = later_["cuda_graph_impl"];
    if (later("cuda_graph_modules")) options.modules = words("cuda_graph_modules");
    if (later("cuda_graph_scope")) options.scope = words("cuda_graph_scope");
    options.enable_cuda_graph = later("enable_cuda_graph");
    options.external_cuda_graph = later("external_cuda_graph");
    std::vector<config::Violation> wrong;
    options = migrated(options, wrong);
    if (!wrong.empty()) {
      std::string flag = wrong[0].key;
      std::replace(flag.begin(), flag.end(), '_', '-');
      base::throw_error("config", base::concat("Megatron arguments: --", flag, " ", wrong[0].value, ": ",
                                               wrong[0].rule, "; ", wrong[0].fix));
    }
    const bool named = later("cuda_graph_modules") || later("cuda_graph_scope"), none = options.impl == "none";
    if (!none || later("cuda_graph_impl")) derive("train.cuda_graph_impl=$", options.impl, "--cuda-graph-impl");
    std::string list;
    for (const std::string& word : options.modules) list += (list.empty() ? "" : ", ") + config::quoted(word);
    if (named && whole_ && none) return ignore("--cuda-graph-modules [" + list + "]", "without --cuda-graph-impl");
    if (named) derive("train.cuda_graph_modules=$", "[" + list + "]", "--cuda-graph-modules");
  }

  static constexpr const char* kVpp = "parallel.virtual_pipeline_model_parallel_size";

  void virtual_stages() {
    MPX_CHECK(
        !later("no_overlap_p2p") || !later("overlap_p2p"), "config",
        "Megatron arguments: --overlap-p2p-communication and --no-overlap-p2p-communication exclude each other; "
        "keep one");
    const bool layers = later("layers_per_virtual_stage"), stages = given(kVpp),
               layout = given("parallel.pipeline_model_parallel_layout");
    MPX_CHECK(int{layers} + int{stages} + int{layout} <= 1, "config",
              "Megatron arguments: at most one of --num-layers-per-virtual-pipeline-stage, "
              "--num-virtual-stages-per-pipeline-rank and --pipeline-model-parallel-layout may be given");
    if (layers) {
      MPX_CHECK(
          !given("parallel.decoder_first_pipeline_num_layers") && !given("parallel.decoder_last_pipeline_num_layers"),
          "config",
          "Megatron arguments: uneven stages need --num-virtual-stages-per-pipeline-rank, not "
          "--num-layers-per-virtual-pipeline-stage");
      derive(std::string(kVpp) + "=" + std::to_string(counted_virtual_stages()), "",
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

  config::Config draft() const {
    config::Draft draft;
    for (const auto& [key, value] : assigned_) draft.assign(key + "=" + value);
    return draft.finish();
  }

  int64_t counted_virtual_stages() {
    static constexpr const char* kFlag = "--num-layers-per-virtual-pipeline-stage";
    MPX_CHECK(given("model.num_layers") && given("parallel.pipeline_model_parallel_size"), "config",
              "Megatron arguments: ", kFlag, " needs --num-layers and --pipeline-model-parallel-size; or use ",
              "--num-virtual-stages-per-pipeline-rank");
    const config::Config c = draft();
    const std::string text = base::without_digit_groups(later_["layers_per_virtual_stage"]);
    int64_t each = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), each);
    MPX_CHECK(error == std::errc() && stop == text.data() + text.size(), "config", "Megatron arguments: ", kFlag,
              ": ", text, ": expected an integer, at least 1");
    const int64_t units = c.model.num_layers + (c.parallel.account_for_embedding_in_pipeline_split ? 1 : 0) +
                          (c.parallel.account_for_loss_in_pipeline_split ? 1 : 0);
    MPX_CHECK(each > 0 && c.parallel.pp() > 0 && units % c.parallel.pp() == 0 && units / c.parallel.pp() % each == 0,
              "config", "Megatron arguments: ", kFlag, " ", each, " does not divide the ", units, " layers over ",
              c.parallel.pp(), " pipeline stages; choose a divisor of the layers of a stage");
    return units / c.parallel.pp() / each;
  }

  void whole_command() {
    std::string missing;
    for (const char* key : required_keys()) {
      if (given(key)) continue;
      std::string flag;
      for (const FlagRow& row : flag_table()) {
        if (flag.empty() && std::string(row.sets) == std::string(key) + "=$") flag = row.flag;
      }
      missing += (missing.empty() ? "" : ", ") + flag;
    }
    MPX_CHECK(missing.empty(), "config", "Megatron arguments: missing ", missing,
              "; Megatron has no default for them");
    for (const auto& [interval, flag] : {std::pair("checkpoint.save_interval", "--save-interval"),
                                         std::pair("checkpoint.save_retain_interval", "--save-retain-interval")}) {
      MPX_CHECK(!given("checkpoint.save") || !given(interval) || !is_zero(assigned_[interval]), "config",
                "Megatron arguments: ", flag, " 0: must be above 0 with --save; leave it out");
    }
    const config::Model m = draft().model;
    const bool llama = m.position_embedding_type == config::PositionEmbedding::rope &&
                       m.normalization == config::Normalization::RMSNorm &&
                       m.activation == config::Activation::silu && m.gated_linear_unit && !m.add_bias_linear;
    if (llama) assigned_["model.family"] = "llama";
  }

  const std::vector<GivenFlag>& flags_;
  const bool whole_;
  std::map<std::string, std::string> assigned_;
  std::map<std::string, std::string> later_;
  std::map<std::string, std::pair<std::string, std::string>>
      setters_;  // key -> the first flag that set it, its value
  Arguments out_;
};

}  // namespace

Arguments translate(const std::vector<GivenFlag>& flags, Form form) { return Translator(flags, form).run(); }

}  // namespace metroplex::megatron

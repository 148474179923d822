#include "megatron/flags.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>
#include <sstream>
#include <tuple>

#include "base/error.h"
#include "config/derived.h"
#include "config/fields.h"
#include "config/load.h"
#include "megatron/cuda_graphs.h"

namespace metroplex::megatron {

// Megatron spells some flags with underscores inside (--override-opt_param-scheduler).
static std::string spelled(std::string flag) {
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

static std::string without_quotes(std::string word) {
  const bool quoted_word = word.size() >= 2 && word.front() == word.back() && (word[0] == '\'' || word[0] == '"');
  return quoted_word ? word.substr(1, word.size() - 2) : word;
}

static const FlagRow* find_row(const std::string& flag) {
  for (const FlagRow& row : flag_table()) {
    if (flag == row.flag) return &row;
  }
  return nullptr;
}

namespace {

using Assignments = std::map<std::string, std::string>;

class Parser {
 public:
  Parser(const std::vector<std::string>& tokens, Form form) : tokens_(tokens), whole_(form == Form::kWholeCommand) {}

  Arguments run() {
    if (whole_) {
      for (const char* pair : defaults()) set(pair, "", "Megatron's default");
    }
    given_.clear();
    while (at_ < tokens_.size()) read_flag();
    heads();
    activation();
    precision();
    optimizer_state();
    sharding();
    recompute();
    experts();
    positions();
    tokenizer();
    evaluation();
    graphs();
    // nccl is what auto takes where there are GPUs.
    if (later("backend") && later_["backend"] != "nccl")
      set("run.backend=$", later_["backend"], "--distributed-backend");
    virtual_stages();
    if (whole_) whole_command();
    for (const auto& [key, value] : assigned_) out_.assignments.push_back(key + "=" + value);
    return std::move(out_);
  }

 private:
  bool is_value(size_t i) const { return i < tokens_.size() && tokens_[i].rfind("--", 0) != 0; }

  void read_flag() {
    const std::string token = tokens_[at_++];
    MPX_CHECK(token.rfind("--", 0) == 0, "config", "Megatron arguments: '", token,
              "' stands alone; expected a --flag", at_ > 1 ? " after '" + tokens_[at_ - 2] + "'" : "");
    const size_t equals = token.find('=');
    const std::string flag = spelled(token.substr(0, equals));
    std::vector<std::string> values;
    if (equals != std::string::npos) values.push_back(token.substr(equals + 1));
    for (const auto& [removed, hint] : removed_flags()) {
      MPX_CHECK(flag != removed, "config", "Megatron arguments: ", flag, " was removed from Megatron; ", hint);
    }
    const FlagRow* row = find_row(flag);
    if (row == nullptr) {
      while (is_value(at_)) values.push_back(tokens_[at_++]);
      unknown(flag, values);
      return;
    }
    take_values(*row, values);
    apply(*row, values);
  }

  void unknown(const std::string& flag, const std::vector<std::string>& values) {
    std::string all = flag;
    for (const auto& value : values) all += " " + value;
    if (values.size() == 1 && is_fixed(flag, values[0]))
      return out_.without_effect.push_back(all + ": it is always so");
    const auto& fixed = fixed_flags();
    const bool known = std::any_of(fixed.begin(), fixed.end(), [&](const auto& pair) { return flag == pair.first; });
    const std::string slip = known ? "" : nearest_flag(flag, false),
                      near = known || !slip.empty() || whole_ ? slip : nearest_flag(flag, true);
    if (!near.empty()) all += " (the nearest known is " + near + ")";
    const bool learned = defines_the_model(flag) || (!slip.empty() && decides_what_is_learned(slip));
    (learned ? out_.defining : out_.not_known_yet).push_back(all);
  }

  static bool is_fixed(const std::string& flag, const std::string& value) {
    const auto& fixed = fixed_flags();
    return std::any_of(fixed.begin(), fixed.end(),
                       [&](const auto& pair) { return flag == pair.first && value == pair.second; });
  }

  void take_values(const FlagRow& row, std::vector<std::string>& values) {
    const size_t wanted = row.take == Take::kNone ? 0 : row.take == Take::kThree ? 3 : 1;
    const bool open = row.take == Take::kList || row.take == Take::kText;
    while (is_value(at_) && (open || values.size() < wanted)) values.push_back(tokens_[at_++]);
    const std::string count = wanted == 0   ? "no value"
                              : open        ? "1 or more values"
                              : wanted == 1 ? "1 value"
                                            : "3 values";
    MPX_CHECK(open ? !values.empty() : values.size() == wanted, "config", "Megatron arguments: ", row.flag, " takes ",
              count, ", got ", values.size());
  }

  void apply(const FlagRow& row, const std::vector<std::string>& values) {
    std::string value;
    if (row.take == Take::kList) {
      for (const auto& item : values) value += (value.empty() ? "[" : ", ") + config::quoted(item);
      value += "]";
    } else {
      // An unquoted array of a script keeps the quotes inside its words (--split '99,1,0'); Megatron reads past them.
      for (const auto& word : values) value += (value.empty() ? "" : " ") + without_quotes(word);
    }
    if (row.sets[0] == '\0')
      return out_.without_effect.push_back(row.flag + (value.empty() ? "" : " " + value) + ": " + row.why);
    std::istringstream pairs(row.sets);
    for (std::string pair; std::getline(pairs, pair, ';');) set(pair, value, row.flag);
  }

  // One "key=value"; a key without a section is kept for later.
  void set(const std::string& pair, const std::string& value, const std::string& flag) {
    const size_t equals = pair.find('=');
    const std::string key = pair.substr(0, equals);
    std::string text = pair.substr(equals + 1);
    if (text == "$") text = value;
    if (key.find('.') == std::string::npos) {
      later_[key] = text;
      return;
    }
    try {
      config::Draft().assign(key + "=" + text);
    } catch (const base::Error& error) {
      base::throw_error("config", base::concat("Megatron arguments: ", flag, ": ",
                                               std::string(error.what()).substr(std::string("[config] ").size())));
    }
    assigned_[key] = text;
    given_[key] = flag;
  }

  bool later(const char* key) const { return later_.contains(key); }
  bool assigned(const char* key, const char* value) const {
    const auto found = assigned_.find(key);
    return found != assigned_.end() && found->second == value;
  }

  // In a whole command --num-query-groups counts only beside --group-query-attention, where 1 is its default.
  void heads() {
    if (whole_ && later("query_groups") && !later("gqa"))
      out_.without_effect.push_back("--num-query-groups " + later_["query_groups"] +
                                    ": ignored, as Megatron does without --group-query-attention");
    if (later("gqa") || (later("query_groups") && !whole_))
      set("model.num_query_groups=$", later("query_groups") ? later_["query_groups"] : "1", "--num-query-groups");
  }

  // The fused bias + GELU is the tanh form; without biases, or with the fusion off, it is the exact one.
  void activation() {
    if (given_.contains("model.activation")) return;
    const bool exact = later("no_gelu_fusion") || assigned("model.add_bias_linear", "false");
    if (whole_) set(exact ? "model.activation=gelu" : "model.activation=gelu_tanh", "", "Megatron's default");
    if (!whole_ && later("no_gelu_fusion")) set("model.activation=gelu", "", "--no-bias-gelu-fusion");
  }

  // Without --accumulate-allreduce-grads-in-fp32 Megatron adds fp16 gradients up in fp16, bf16 ones in fp32.
  void precision() {
    static constexpr const char* kGrads = "precision.main_grads_dtype";
    MPX_CHECK(!later("bf16") || !later("fp16"), "config",
              "Megatron arguments: --bf16 and --fp16 exclude each other; keep one");
    if (later("main_grads_dtype")) {
      const std::string& format = later_["main_grads_dtype"];
      MPX_CHECK(format == "fp32" || format == "bf16", "config", "Megatron arguments: --main-grads-dtype ", format,
                ": expected fp32 or bf16");
      if (!given_.contains(kGrads) && (format == "bf16" || !whole_))
        set(std::string(kGrads) + (format == "fp32" ? "=fp32" : "=params"), "", "--main-grads-dtype");
    }
    if (whole_ && later("fp16") && !given_.contains(kGrads))
      set(std::string(kGrads) + "=params", "", "Megatron's default");
  }

  // Megatron's fp8 moments have a scale a tensor, ours one a block.
  void optimizer_state() {
    if (later("no_weight_decay_cond_type")) {
      MPX_CHECK(
          later_["no_weight_decay_cond_type"] == "apply_wd_to_qk_layernorm", "config",
          "Megatron arguments: --no-weight-decay-cond-type ", later_["no_weight_decay_cond_type"],
          ": expected apply_wd_to_qk_layernorm; which parameters decay is otherwise said by optim.param_groups");
      set("optim.apply_wd_to_qk_layernorm=true", "", "--no-weight-decay-cond-type");
    }
    for (const char* moment : {"exp_avg_dtype", "exp_avg_sq_dtype"}) {
      if (later(moment))
        set(std::string("optim.") + moment + "=$", later_[moment] == "fp8" ? "8bit" : later_[moment], moment);
    }
    const config::Config c = draft();
    const bool remainders = later("precision_aware") && later("bf16") &&
                            c.optim.main_params_dtype == config::MainParamsDtype::fp32 && c.optim.optimizer == "adam";
    if (whole_ && remainders) set("optim.store_param_remainders=true", "", "Megatron's default");
  }

  // In a whole command the strategy is FSDP's, and so is its default.
  void sharding() {
    const bool fsdp = later("fsdp"), counts = later("strategy") && (fsdp || !whole_);
    if (later("strategy") && !counts) {
      out_.not_known_yet.push_back("--data-parallel-sharding-strategy " + later_["strategy"] +
                                   " (counts beside --use-megatron-fsdp only)");
    }
    const std::string strategy = counts             ? later_["strategy"]
                                 : fsdp             ? "optim_grads_params"
                                 : later("sharded") ? later_["sharded"]
                                                    : "";
    if (!strategy.empty()) set("parallel.data_parallel_sharding_strategy=$", strategy, "--use-distributed-optimizer");
    if (later("align_param_gather") && !whole_)
      set("parallel.align_param_gather=$", later_["align_param_gather"], "--align-param-gather");
    // On by default, but only the interleaved schedule heeds it.
    const config::Parallel p = draft().parallel;
    const bool gathers = p.overlap_param_gather && p.sharding().gathers_updates();
    const bool wanted = !later("align_param_gather") || later_["align_param_gather"] == "true";
    if (whole_ && gathers && wanted && config::virtual_stages(p) > 1)
      set("parallel.align_param_gather=true", "", "Megatron's default");
  }

  void recompute() {
    std::string list = later("recompute_modules") ? later_["recompute_modules"] : "";
    if (later("moe_layer_recompute")) {
      MPX_CHECK(!assigned("memory.recompute_granularity", "full"), "config",
                "Megatron arguments: --moe-layer-recompute excludes --recompute-granularity full; leave it out");
      set("memory.recompute_granularity=selective", "", "--moe-layer-recompute");
      // Megatron adds to its default.
      list = list.empty() ? "[core_attn, moe]" : list.substr(0, list.size() - 1) + ", moe]";
    }
    if (!list.empty()) set("memory.recompute_modules=$", list, "--recompute-modules");
  }

  // Megatron's flex is a choice between libraries that send as alltoall does; hybridep with a capacity of a rank,
  // into buffers of fixed size.
  void experts() {
    static constexpr const char* kDispatcher = "--moe-token-dispatcher-type";
    const bool fixed = later("flex_backend") && later_["flex_backend"] == "hybridep" && later("rank_capacity");
    if (later("flex_backend") && !fixed)
      out_.without_effect.push_back(
          "--moe-flex-dispatcher-backend: ignored, rows are sent in one way; hybridep with "
          "--moe-expert-rank-capacity-factor is static_buffer");
    if (later("rank_capacity"))
      set("model.moe_expert_rank_capacity_factor=$", later_["rank_capacity"], "--moe-expert-rank-capacity-factor");
    if (later("dispatcher") && later_["dispatcher"] == "flex" && fixed) {
      set("model.moe_token_dispatcher_type=static_buffer", "", kDispatcher);
    } else if (later("dispatcher")) {
      const std::string& type = later_["dispatcher"];
      const bool sends = type == "flex" || type == "alltoall_seq";
      set("model.moe_token_dispatcher_type=$", sends ? "alltoall" : type, kDispatcher);
      if (sends) out_.without_effect.push_back(base::concat(kDispatcher, " ", type, ": taken as alltoall"));
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
      set(pair, list, flag);
    }
  }

  // Megatron's pair (earlier, later) of positions; ours sees no later ones.
  void window() {
    if (!later("window")) return;
    std::string text = later_["window"], first, second;
    text.erase(std::remove_if(text.begin(), text.end(), [](char c) { return c == '(' || c == ')' || c == ' '; }),
               text.end());
    const size_t comma = text.find(',');
    if (comma != std::string::npos) first = text.substr(0, comma), second = text.substr(comma + 1);
    MPX_CHECK(comma != std::string::npos && second == "0", "config", "Megatron arguments: --window-size ",
              later_["window"], ": expected two numbers with a comma, of which the second, later positions, is 0");
    set("model.window_size=$", first, "--window-size");
  }

  void positions() {
    window();
    if (later("no_position")) set("model.position_embedding_type=none", "", "--no-position-embedding");
  }

  // GPT2BPETokenizer is the default of pretrain_gpt.py, made of --vocab-file and --merge-file.
  void tokenizer() {
    const bool files = given_.contains("data.vocab_file") || given_.contains("data.merge_file");
    if (!later("tokenizer") && files && whole_) later_["tokenizer"] = "GPT2BPETokenizer";
    if (!later("tokenizer")) return;
    for (const auto& [theirs, ours] : tokenizers()) {
      if (later_["tokenizer"] == theirs)
        return set(std::string("data.tokenizer_type=") + ours, "", "--tokenizer-type");
    }
    out_.defining.push_back("--tokenizer-type " + later_["tokenizer"]);
  }

  // Zero iterations are Megatron's way to have no evaluation, whatever the interval.
  void evaluation() {
    if (assigned("train.eval_iters", "0")) set("train.eval_interval=0", "", "--eval-iters");
  }

  std::vector<std::string> words(const std::string& name) const {
    std::istringstream text(later_.at(name));
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
    if (!none || later("cuda_graph_impl")) set("train.cuda_graph_impl=$", options.impl, "--cuda-graph-impl");
    std::string list;
    for (const std::string& word : options.modules) list += (list.empty() ? "" : ", ") + config::quoted(word);
    if (named && whole_ && none) {
      out_.without_effect.push_back("--cuda-graph-modules [" + list +
                                    "]: ignored, as Megatron does without --cuda-graph-impl");
    } else if (named) {
      set("train.cuda_graph_modules=$", "[" + list + "]", "--cuda-graph-modules");
    }
  }

  static constexpr const char* kVpp = "parallel.virtual_pipeline_model_parallel_size";

  void virtual_stages() {
    const bool layers = later("layers_per_virtual_stage"), stages = given_.contains(kVpp),
               layout = given_.contains("parallel.pipeline_model_parallel_layout");
    MPX_CHECK(int{layers} + int{stages} + int{layout} <= 1, "config",
              "Megatron arguments: at most one of --num-layers-per-virtual-pipeline-stage, "
              "--num-virtual-stages-per-pipeline-rank and --pipeline-model-parallel-layout may be given");
    if (layers) {
      MPX_CHECK(!given_.contains("parallel.decoder_first_pipeline_num_layers") &&
                    !given_.contains("parallel.decoder_last_pipeline_num_layers"),
                "config",
                "Megatron arguments: uneven stages need --num-virtual-stages-per-pipeline-rank, not "
                "--num-layers-per-virtual-pipeline-stage");
      set(std::string(kVpp) + "=" + std::to_string(counted_virtual_stages()), "",
          "--num-layers-per-virtual-pipeline-stage");
    }
    if (!whole_ || later("no_overlap_p2p")) {
      if (later("no_overlap_p2p")) set("parallel.overlap_p2p_comm=false", "", "--no-overlap-p2p-communication");
      return;
    }
    const bool interleaved = config::virtual_stages(draft().parallel) > 1;
    set(std::string("parallel.overlap_p2p_comm=") + (interleaved ? "true" : "false"), "", "Megatron's default");
  }

  // What all flags so far make.
  config::Config draft() const {
    config::Draft draft;
    for (const auto& [key, value] : assigned_) draft.assign(key + "=" + value);
    return draft.finish();
  }

  int64_t counted_virtual_stages() {
    static constexpr const char* kFlag = "--num-layers-per-virtual-pipeline-stage";
    MPX_CHECK(given_.contains("model.num_layers") && given_.contains("parallel.pipeline_model_parallel_size"),
              "config", "Megatron arguments: ", kFlag,
              " needs --num-layers and --pipeline-model-parallel-size beside it; or use ",
              "--num-virtual-stages-per-pipeline-rank");
    const config::Config c = draft();
    const std::string& text = later_["layers_per_virtual_stage"];
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
      if (given_.contains(key)) continue;
      std::string flag;
      for (const FlagRow& row : flag_table()) {
        if (flag.empty() && std::string(row.sets) == std::string(key) + "=$") flag = row.flag;
      }
      missing += (missing.empty() ? "" : ", ") + flag;
    }
    MPX_CHECK(missing.empty(), "config", "Megatron arguments: missing ", missing,
              "; Megatron has no default for them");
    const config::Model m = draft().model;
    const bool llama = m.position_embedding_type == config::PositionEmbedding::rope &&
                       m.normalization == config::Normalization::RMSNorm &&
                       m.activation == config::Activation::silu && m.gated_linear_unit;
    if (llama) assigned_["model.family"] = "llama";
  }

  const std::vector<std::string>& tokens_;
  const bool whole_;
  size_t at_ = 0;
  Assignments assigned_;
  std::map<std::string, std::string> later_;
  std::map<std::string, std::string> given_;  // key -> the flag that set it
  Arguments out_;
};

}  // namespace

Arguments parse_arguments(const std::vector<std::string>& tokens, Form form) { return Parser(tokens, form).run(); }

}  // namespace metroplex::megatron

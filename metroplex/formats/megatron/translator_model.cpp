// Model and data keys that depend on several flags.
#include "megatron/translator.h"

#include <algorithm>
#include <sstream>
#include <tuple>

#include "base/error.h"
#include "config/fields.h"

namespace metroplex::megatron {

// In a whole command --num-query-groups has an effect only with --group-query-attention, where its default is 1.
void Translator::heads() {
  if (later("head_type")) {
    const std::string& type = pending_keys_["head_type"];
    MPX_CHECK(type == "multiquery" || type == "multihead", "config", "Megatron arguments: --attention-head-type ",
              type, ": expected multiquery or multihead");
    MPX_CHECK(!later("gqa"), "config",
              "Megatron arguments: --attention-head-type excludes --group-query-attention and "
              "--num-key-value-heads; keep one");
    if (type == "multiquery") derive("model.num_query_groups=1", "", "--attention-head-type");
  }
  if (whole_ && later("query_groups") && !later("gqa"))
    ignore("--num-query-groups " + pending_keys_["query_groups"], "without --group-query-attention");
  if (later("gqa") || (later("query_groups") && !whole_))
    derive("model.num_query_groups=$", later("query_groups") ? pending_keys_["query_groups"] : "1",
           "--num-query-groups");
}

// Newer versions abbreviate the name.
void Translator::attention_variant() {
  if (!later("attention_variant")) return;
  const std::string& name = pending_keys_["attention_variant"];
  derive("model.experimental_attention_variant=$", name == "gdn" ? "gated_delta_net" : name,
         "--experimental-attention-variant");
}

// Megatron-DeepSpeed uses lower-case values.
void Translator::normalization() {
  if (!later("normalization")) return;
  const std::string& name = pending_keys_["normalization"];
  derive("model.normalization=$",
         name == "rmsnorm"     ? "RMSNorm"
         : name == "layernorm" ? "LayerNorm"
                               : name,
         "--normalization");
}

// Megatron-LLM writes all its flags with underscores. Its layers have biases only with --use_bias.
void Translator::biases() {
  const bool llm = std::any_of(flags_.begin(), flags_.end(), [](const GivenFlag& flag) {
    return flag.underscores && flag.row->flag == std::string("--num-layers");
  });
  if (later("use_bias")) return derive("model.add_bias_linear=true", "", "--use_bias");
  if (!whole_ || !llm) return;
  derive("model.add_bias_linear=false", "", "");
  out_.notes.push_back("--num_layers is a flag of Megatron-LLM, where layers have no biases without --use_bias");
}

// The fused bias + GELU is the tanh form. Without biases, or with the fusion off, GELU is exact.
void Translator::activation() {
  if (later("squared_relu")) return derive("model.activation=squared_relu", "", "--squared-relu");
  if (later("quick_geglu") || later("swiglu")) {
    const char* flag = later("quick_geglu") ? "--quick-geglu" : "--swiglu";
    derive(later("quick_geglu") ? "model.activation=quick_gelu" : "model.activation=silu", "", flag);
    derive("model.gated_linear_unit=true", "", flag);
    // Megatron reduces the MLP width to 8/3 of hidden_size for --swiglu only.
    if (whole_ && later("quick_geglu") && !given("model.ffn_hidden_size"))
      derive("model.ffn_hidden_size=$", std::to_string(4 * draft().model.hidden_size), flag);
    return;
  }
  if (later("openai_gelu")) return derive("model.activation=gelu_tanh", "", "--openai-gelu");
  const bool exact = later("no_gelu_fusion") || assigned("model.add_bias_linear", "false");
  if (whole_) derive(exact ? "model.activation=gelu" : "model.activation=gelu_tanh", "", "");
  if (!whole_ && later("no_gelu_fusion")) derive("model.activation=gelu", "", "--no-bias-gelu-fusion");
}

// Without a mask from the data, Megatron's attention is causal over the whole sample.
void Translator::attention_mask() {
  if (whole_ && later("no_mask")) drop("data.reset_attention_mask", "with --no-create-attention-mask-in-dataloader");
}

// Megatron's flex dispatcher selects between libraries that are equivalent to alltoall. hybridep with a capacity per
// rank uses buffers of fixed size.
void Translator::experts() {
  context_parallel_algorithm();
  static constexpr const char* kDispatcher = "--moe-token-dispatcher-type";
  const bool fixed = later("flex_backend") && pending_keys_["flex_backend"] == "hybridep" && later("rank_capacity");
  if (later("rank_capacity"))
    derive("model.moe_expert_rank_capacity_factor=$", pending_keys_["rank_capacity"],
           "--moe-expert-rank-capacity-factor");
  if (later("dispatcher") && pending_keys_["dispatcher"] == "flex" && fixed) {
    derive("model.moe_token_dispatcher_type=static_buffer", "", kDispatcher);
  } else if (later("dispatcher")) {
    const std::string& type = pending_keys_["dispatcher"];
    const bool sends = type == "flex" || type == "alltoall_seq";
    derive("model.moe_token_dispatcher_type=$", sends ? "alltoall" : type, kDispatcher);
  }
  for (const auto& [name, pair, flag] :
       {std::tuple("dispatch_dtype", "model.moe_dispatch_fwd_dtype=$", "--moe-dispatch-fwd-dtype"),
        std::tuple("combine_dtype", "model.moe_combine_bwd_dtype=$", "--moe-combine-bwd-dtype")})
    if (later(name)) derive(pair, pending_keys_[name] == "bf16" ? "params" : pending_keys_[name], flag);
  if (later("shared_expert")) {
    MPX_CHECK(later("shared_width") || !whole_, "config",
              "Megatron arguments: --enable-shared-expert needs --shared-moe-ffn-hidden-size; add it");
    if (later("shared_width"))
      derive("model.moe_shared_expert_intermediate_size=$", pending_keys_["shared_width"],
             "--shared-moe-ffn-hidden-size");
    derive("model.moe_shared_expert_gate=true", "", "--enable-shared-expert");
  } else if (later("shared_width") && !whole_) {
    derive("model.moe_shared_expert_intermediate_size=$", pending_keys_["shared_width"],
           "--shared-moe-ffn-hidden-size");
  } else if (later("shared_width")) {
    ignore("--shared-moe-ffn-hidden-size " + pending_keys_["shared_width"], "without --enable-shared-expert");
  }
  if (whole_ && !given("model.moe_router_group_topk"))
    drop("model.moe_router_num_groups", "without --moe-router-group-topk");
  const std::tuple<const char*, const char*, const char*> lists[] = {
      {"cp_comm_type", "parallel.cp_comm_type=$", "--cp-comm-type"},
      {"context_levels", "parallel.hierarchical_context_parallel_sizes=$", "--hierarchical-context-parallel-sizes"},
      {"balancing", "model.moe_router_load_balancing_type=$", "--moe-router-load-balancing-type"},
      {"aux_loss_coeff", "model.moe_aux_loss_coeff=$", "--moe-aux-loss-coeff"}};
  for (const auto& [name, pair, flag] : lists) {
    if (!later(name)) continue;
    std::string list = pending_keys_[name];
    std::replace(list.begin(), list.end(), ' ', ',');
    derive(pair, list, flag);
  }
}

// Megatron's layer pattern also divides the layers into pipeline stages, and determines their number.
void Translator::hybrid_layers() {
  static constexpr const char* kFlag = "--hybrid-layer-pattern";
  static constexpr double kMambaEpsilon = 1e-5;  // of Megatron's norm in Mamba-2 layers
  MPX_CHECK(!whole_ || !later("is_hybrid") || later("hybrid_pattern"), "config",
            "Megatron arguments: --is-hybrid-model: needs ", kFlag, "; add it");
  const std::string pattern = later("hybrid_pattern") ? pending_keys_["hybrid_pattern"] : "";
  const bool mamba = pattern.find('M') != std::string::npos;
  for (const char* const size : {"mamba_state_dim", "mamba_head_dim", "mamba_num_groups", "mamba_num_heads"}) {
    if (!later(size)) continue;
    std::string flag = std::string("--") + size;
    std::replace(flag.begin(), flag.end(), '_', '-');
    if (mamba || !whole_) derive(base::concat("model.", size, "=$"), pending_keys_[size], flag);
    else ignore(flag + " " + pending_keys_[size], "without M in --hybrid-layer-pattern");
  }
  if (pattern.empty()) return;
  std::string layers, stages;
  for (const char symbol : pattern) {
    stages += symbol == '|' ? '|' : 't';
    if (symbol != '|') layers += symbol;
  }
  derive("model.hybrid_layer_pattern=$", layers, kFlag);
  if (!given("model.num_layers")) derive("model.num_layers=$", std::to_string(layers.size()), kFlag);
  if (layers.size() < pattern.size()) derive("parallel.pipeline_model_parallel_layout=$", "E" + stages + "L", kFlag);
  drop("model.moe_layer_freq", "with --hybrid-layer-pattern");
  const double epsilon = draft().model.layernorm_epsilon;
  MPX_CHECK(
      !whole_ || !mamba || epsilon == kMambaEpsilon, "config", "Megatron arguments: --norm-epsilon ", epsilon,
      ": Megatron normalizes inside Mamba-2 layers with 1e-5, and here one value applies to all norms; omit it");
}

// Megatron's window is a pair (earlier, later) of positions; our queries never attend to later ones.
void Translator::window() {
  if (!later("window")) return;
  std::string text = pending_keys_["window"], first, second;
  text.erase(std::remove_if(text.begin(), text.end(), [](char c) { return c == '(' || c == ')' || c == ' '; }),
             text.end());
  const size_t comma = text.find(',');
  if (comma != std::string::npos) first = text.substr(0, comma), second = text.substr(comma + 1);
  const bool is_number = !second.empty() && second.find_first_not_of("-0123456789") == std::string::npos;
  MPX_CHECK(comma != std::string::npos && is_number, "config", "Megatron arguments: --window-size ",
            pending_keys_["window"], ": expected two numbers separated by a comma");
  if (first == "-1") return;  // all earlier positions
  derive("model.window_size=$", first, "--window-size");
}

// --use-rotary-position-embeddings overrides any type. --no-position-embedding only removes the learned table.
void Translator::positions() {
  window();
  MPX_CHECK(!given("model.qk_l2_norm") || !given("model.no_rope_freq"), "config",
            "Megatron arguments: --qk-l2-norm: excludes --no-rope-freq, because Megatron also normalizes in layers "
            "without rotary positions; omit one of them");
  static constexpr const char* kType = "model.position_embedding_type=$";
  std::string type = later("rotary") ? "rope" : later("position_type") ? pending_keys_["position_type"] : "";
  // Megatron-LLM, BigCode
  if (type == "rotary") type = "rope";
  if (type == "absolute") type = "learned_absolute";
  MPX_CHECK(!later("no_position") || type == "rope", "config",
            "Megatron arguments: --no-position-embedding: only accepted with --position-embedding-type rope; use "
            "--position-embedding-type none");
  const bool latent = assigned("model.multi_latent_attention", "true");
  MPX_CHECK(
      !whole_ || latent || !assigned("model.rope_type", "yarn"), "config",
      "Megatron arguments: --rope-type yarn: needs --multi-latent-attention; use --position-embedding-type yarn");
  if (type == "yarn") yarn_type();
  yarn_frequencies(type == "yarn");
  if (type == "yarn") return;
  if (!type.empty())
    derive(kType, type, later("rotary") ? "--use-rotary-position-embeddings" : "--position-embedding-type");
}

// With type yarn Megatron rotates whole heads.
void Translator::yarn_type() {
  static constexpr const char* kFlag = "--position-embedding-type";
  MPX_CHECK(!assigned("model.multi_latent_attention", "true"), "config", "Megatron arguments: ", kFlag,
            " yarn excludes --multi-latent-attention; use --rope-type yarn");
  derive("model.position_embedding_type=rope", "", kFlag);
  derive("model.rope_type=yarn", "", kFlag);
  for (const char* key : {"model.rotary_percent", "model.rotary_seq_len_interpolation_factor",
                          "model.use_rope_scaling", "model.rope_scaling_factor"})
    drop(key, "with --position-embedding-type yarn");
}

void Translator::yarn_frequencies(bool used) {
  const std::tuple<const char*, const char*, const char*> keys[] = {
      {"yarn_positions", "model.original_max_position_embeddings=$", "--yarn-original-max-position-embeddings"},
      {"yarn_beta_fast", "model.beta_fast=$", "--yarn-beta-fast"},
      {"yarn_beta_slow", "model.beta_slow=$", "--yarn-beta-slow"},
      {"yarn_rounds", "model.yarn_correction_range_round_to_int=$", "--yarn-correction-range-round-to-int"}};
  for (const auto& [name, pair, flag] : keys) {
    if (!later(name)) continue;
    if (used || !whole_) derive(pair, pending_keys_[name], flag);
    else ignore(std::string(flag) + " " + pending_keys_[name], "without --position-embedding-type yarn");
  }
}

// Megatron's rotary table for latent attention ignores these keys.
void Translator::latent_attention() {
  if (!whole_ || !assigned("model.multi_latent_attention", "true")) return;
  static constexpr const char* kWhy = "with --multi-latent-attention";
  drop("model.use_rope_scaling", kWhy);
  drop("model.rope_scaling_factor", kWhy);
  drop("model.rotary_seq_len_interpolation_factor", kWhy);
  if (!assigned("model.rope_type", "rope")) drop("model.rotary_percent", "with --rope-type yarn");
  MPX_CHECK(!given("model.rotary_interleaved"), "config",
            "Megatron arguments: --rotary-interleaved: not implemented with --multi-latent-attention, where "
            "Megatron pairs channels of different frequencies; omit it");
}

// GPT2BPETokenizer is the default of pretrain_gpt.py with --vocab-file or --merge-file.
void Translator::tokenizer() {
  const bool files = given("data.vocab_file") || given("data.merge_file");
  if (!later("tokenizer") && files && whole_) pending_keys_["tokenizer"] = "GPT2BPETokenizer";
  const std::string name = later("tokenizer") ? pending_keys_["tokenizer"] : "";
  for (const auto& [theirs, ours] : tokenizers()) {
    if (name == theirs) derive(std::string("data.tokenizer_type=") + ours, "", "--tokenizer-type");
  }
  if (later("tokenizer_path")) {
    const bool used = name == "PretrainedFromHF" || (!whole_ && name.empty());
    if (used) derive("data.tokenizer_model=$", pending_keys_["tokenizer_path"], "--tokenizer-name-or-path");
    else
      ignore("--tokenizer-name-or-path " + pending_keys_["tokenizer_path"],
             "without --tokenizer-type PretrainedFromHF");
  }
  const bool own_vocabulary = whole_ && !name.empty() && name != "NullTokenizer" && name != "ByteLevelTokenizer";
  if (later("padded_vocabulary")) padded_vocabulary(own_vocabulary);
  if (!later("vocab_size")) return;
  if (own_vocabulary)
    return ignore("--vocab-size " + pending_keys_["vocab_size"], "with " + name + ", which has a vocabulary");
  derive("model.vocab_size=$", pending_keys_["vocab_size"], "--vocab-size");
}

// --padded-vocab-size sets the rows of the embedding, independent of the tokenizer's vocabulary.
void Translator::padded_vocabulary(bool own_vocabulary) {
  static constexpr const char* kFlag = "--padded-vocab-size";
  drop("model.make_vocab_size_divisible_by", "with --padded-vocab-size");
  if (!own_vocabulary && later("vocab_size")) {
    // One multiple covers all rows.
    derive("model.make_vocab_size_divisible_by=$", pending_keys_["padded_vocabulary"], kFlag);
    const int64_t rows = number("model.make_vocab_size_divisible_by"), tp = draft().parallel.tp();
    derive("model.vocab_size=$", pending_keys_["vocab_size"], "--vocab-size");
    MPX_CHECK(rows > number("model.vocab_size") && tp > 0 && rows % tp == 0, "config", "Megatron arguments: ", kFlag,
              " ", rows, ": must be above --vocab-size and a multiple of --tensor-model-parallel-size; increase it");
    return derive(base::concat("model.make_vocab_size_divisible_by=", rows / tp), "", kFlag);
  }
  derive("model.vocab_size=$", pending_keys_["padded_vocabulary"], kFlag);
  derive("model.make_vocab_size_divisible_by=1", "", kFlag);
}

// Translates MindSpeed's names.
void Translator::context_parallel_algorithm() {
  if (!later("cp_algorithm")) return;
  const std::string& name = pending_keys_["cp_algorithm"];
  const bool ring = name == "megatron_cp_algo";
  MPX_CHECK(ring || name == "ulysses_cp_algo", "config", "Megatron arguments: --context-parallel-algo ", name,
            ": expected megatron_cp_algo or ulysses_cp_algo; use --cp-comm-type for others");
  pending_keys_.emplace("cp_comm_type", ring ? "p2p" : "a2a");
}

}  // namespace metroplex::megatron

// Rules for frozen parameters and adapters.
#include "config/rules.h"

#include <algorithm>
#include <cmath>

#include "base/join.h"
#include "config/family.h"

namespace metroplex::config {

using base::concat;

constexpr double kMaxRank = 1000000;

static void check_patterns(Rules& rules, const char* key, const std::vector<std::string>& patterns) {
  for (const std::string& pattern : patterns) {
    const bool one_word = !pattern.empty() && pattern.find_first_of(" \t\n") == std::string::npos;
    rules.require(one_word, key, "'" + pattern + "'", "is not a pattern of parameter names",
                  "write it like embedding.* or decoder.layers.0.*, several in a list");
  }
}

static void check_targets(Rules& rules) {
  const Peft& peft = rules.config.peft;
  const std::vector<std::string> has = adapter_words(rules.config.model);
  for (const std::string& word : peft.lora_target_modules) {
    const auto ends = [&](const std::string& known) {
      return is_target(known, word) && is_routed(known) == is_routed(word);
    };
    if (std::any_of(has.begin(), has.end(), ends)) continue;
    const bool routed = std::find(has.begin(), has.end(), "experts." + word) != has.end();
    const std::string near = routed ? "experts." + word : base::nearest_name(word, has);
    rules.require(false, "peft.lora_target_modules", word,
                  routed ? "exists only in routed experts in this model"
                         : "is not a linear layer of this model, which has " + base::join(has, ", "),
                  near.empty() ? "leave it out" : concat("did you mean ", near, "?"));
  }
}

static void check_routed_adapters(Rules& rules) {
  const Config& config = rules.config;
  if (!config.peft.adapts_routed_experts()) return;
  const std::string rule = "adapters of routed experts (experts.* in peft.lora_target_modules) do not support it";
  const char* const fix = "turn it off, or leave experts.* out";
  rules.require(config.peft.lora_dropout == 0 || !rules.trains(), "peft.lora_dropout", config.peft.lora_dropout, rule,
                "set it to 0, or leave experts.* out");
  rules.require(!config.peft.use_dora, "peft.use_dora", "true", rule, fix);
  rules.require(!config.model.moe_enable_echo, "model.moe_enable_echo", "true", rule, fix);
}

static void check_dora(Rules& rules) {
  const Config& config = rules.config;
  if (!config.peft.use_dora || !rules.trains()) return;
  rules.require(config.peft.lora_dropout == 0, "peft.lora_dropout", config.peft.lora_dropout,
                "peft.use_dora does not support it", "set it to 0, or turn peft.use_dora off");
  rules.require(!config.model.from.empty() || !config.checkpoint.load.empty(), "peft.use_dora", "true",
                "is for a run that starts from weights, whose rows give the lengths",
                "set model.from, or turn it off");
}

static void check_base_format(Rules& rules) {
  const Config& config = rules.config;
  if (!config.peft.stores_codes()) return;
  const std::string key = concat("peft.base_format = ", config.peft.base_format);
  rules.require(config.precision.params_dtype != ParamsDtype::fp16, "precision.params_dtype", "fp16",
                concat(key, " does not support it, because fp16 does not contain all codes times scales"),
                "use bf16");
  rules.require(!config.parallel.sharding().parameters, "parallel.data_parallel_sharding_strategy",
                config.parallel.data_parallel_sharding_strategy, concat(key, " does not shard codes"),
                "use optim_grads");
  const std::string fix = "turn it off, or set peft.base_format to params";
  rules.require(!config.peft.use_dora, "peft.use_dora", "true",
                concat("begins with the lengths of the loaded rows, which differ from those of ", key), fix);
  rules.require(!config.model.moe_enable_echo, "model.moe_enable_echo", "true",
                concat("sends weights of experts in params_dtype, which ", key, " does not store"), fix);
  rules.require(!config.train.log_params_norm, "train.log_params_norm", "true",
                concat("sums stored values, which ", key, " does not support"), fix);
}

static void check_module_numbers(Rules& rules) {
  const Peft& peft = rules.config.peft;
  const char* const fix = "write it like o_proj=2, several in a list";
  for (const std::string& text : peft.alpha_pattern)
    rules.require(read_module_number(text).has_value(), "peft.alpha_pattern", text,
                  "must be PATTERN=ALPHA with a regular expression and a number above 0", fix);
  for (const std::string& text : peft.rank_pattern) {
    const auto entry = read_module_number(text);
    const bool is_rank = entry && entry->number == std::floor(entry->number) && entry->number <= kMaxRank;
    rules.require(is_rank, "peft.rank_pattern", text,
                  "must be PATTERN=RANK with a regular expression and a whole number from 1 to 1000000", fix);
  }
}

static void check_saved_modules(Rules& rules) {
  std::vector<std::string> known;
  for (const SavedModule& module : saved_modules(rules.config.model)) known.emplace_back(module.word);
  for (const std::string& word : rules.config.peft.modules_to_save) {
    const bool has = std::find(known.begin(), known.end(), word) != known.end();
    rules.require(has, "peft.modules_to_save", word,
                  word == "lm_head" ? "is the embedding in this model, whose embeddings are tied"
                                    : "must be one of " + base::join(known, ", "),
                  word == "lm_head" ? "name embed_tokens" : "correct it, or leave it out");
  }
}

static void check_load_patterns(Rules& rules) {
  const Checkpoint& checkpoint = rules.config.checkpoint;
  const bool begins = checkpoint.finetune || !rules.config.model.from.empty();
  for (const auto& [key, patterns] : {std::pair{"checkpoint.load_only", &checkpoint.load_only},
                                      std::pair{"checkpoint.load_except", &checkpoint.load_except}}) {
    check_patterns(rules, key, *patterns);
    rules.require(patterns->empty() || begins || !rules.trains(), key, concat(patterns->size(), " patterns"),
                  "is for a run that starts from weights", "set checkpoint.finetune or model.from, or leave it out");
  }
}

void check_peft(Rules& rules) {
  const Peft& peft = rules.config.peft;
  check_patterns(rules, "train.freeze", rules.config.train.freeze);
  check_patterns(rules, "train.trainable", rules.config.train.trainable);
  check_load_patterns(rules);
  rules.require(peft.from.empty() || (peft.lora() && !rules.config.model.from.empty()), "peft.from", peft.from,
                "needs the model that the adapters belong to, and peft.lora_rank above 0",
                "set model.from, or leave it out to use the adapters of a checkpoint");
  if (!peft.lora()) {
    refuse_without(rules, "peft.lora_rank", [](std::string_view name) {
      return name == "lora_alpha" || name == "use_rslora" || name == "lora_dropout" ||
             name == "lora_target_modules" || name == "modules_to_save" || name == "rank_pattern" ||
             name == "alpha_pattern" || name == "use_dora" || name == "base_format";
    });
    return;
  }
  check_targets(rules);
  check_module_numbers(rules);
  check_routed_adapters(rules);
  check_dora(rules);
  check_base_format(rules);
  check_saved_modules(rules);
  if (family(rules.config.model.family).top_query) {
    rules.require(false, "peft.lora_rank", peft.lora_rank, "is not supported with model.family = codegeex",
                  "leave it at 0, or choose another family");
  }
}

}  // namespace metroplex::config

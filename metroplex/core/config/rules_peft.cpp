// Rules for frozen parameters and adapters.
#include "config/rules.h"

#include <algorithm>

#include "base/join.h"
#include "config/family.h"

namespace metroplex::config {

using base::concat;

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
    if (std::find(has.begin(), has.end(), word) != has.end()) continue;
    const std::string near = base::nearest_name(word, has);
    const bool of_mlp = word == "gate_proj" || word == "up_proj" || word == "down_proj";
    const bool routed = rules.config.model.has_experts() && of_mlp;
    rules.require(false, "peft.lora_target_modules", word,
                  routed ? "exists only in routed experts in this model, which have no adapters"
                         : "is not a linear layer of this model, which has " + base::join(has, ", "),
                  near.empty() || routed ? "leave it out" : concat("did you mean ", near, "?"));
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
  if (!peft.lora()) {
    refuse_without(rules, "peft.lora_rank", [](std::string_view name) {
      return name == "lora_alpha" || name == "use_rslora" || name == "lora_dropout" ||
             name == "lora_target_modules" || name == "modules_to_save";
    });
    return;
  }
  check_targets(rules);
  check_saved_modules(rules);
  if (family(rules.config.model.family).top_query) {
    rules.require(false, "peft.lora_rank", peft.lora_rank, "is not supported with model.family = codegeex",
                  "leave it at 0, or choose another family");
  }
}

}  // namespace metroplex::config

#include "step/freezing.h"

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "comm/collectives.h"
#include "config/module_pattern.h"
#include "config/name_patterns.h"
#include "config/optim.h"

namespace metroplex::step {
namespace {

std::vector<NamePattern> name_patterns(const config::Config& config) {
  std::vector<NamePattern> all;
  const std::vector<config::ParamGroupRule> rules = config::param_group_rules(config.optim);
  for (size_t i = 0; i < rules.size(); ++i)
    all.push_back({"optim.param_groups: '" + config.optim.param_groups[i] + "'", rules[i].pattern});
  for (const std::string& pattern : config.train.trainable) all.push_back({"train.trainable", pattern});
  for (const std::string& pattern : config.train.freeze) all.push_back({"train.freeze", pattern});
  return all;
}

// A meta-device rank has no peers.
bool has_all_stages(const ProcessContext& process) {
  return !process.world->target().meta || process.groups().pp.size() == 1;
}

}  // namespace

std::vector<std::string> gather_stage_names(const ProcessContext& process, const RankModel& model) {
  std::string mine;
  for (const nn::Param* param : model.params) mine += param->name + "\n";
  for (const nn::Buffer* buffer : model.buffers) mine += buffer->name + "\n";
  std::vector<std::string> names;
  for (const std::string& stage : comm::all_gather_strings(mine, process.groups().stages)) {
    std::istringstream lines(stage);
    for (std::string name; lines >> name;) names.push_back(name);
  }
  return names;
}

// Every target and pattern of section peft must select an adapter.
void check_adapter_names(const config::Peft& peft, const std::vector<std::string>& names) {
  const auto check = [&](const char* key, const std::string& text, const auto& selects) {
    const bool any = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return config::is_adapter(name) && selects(config::adapted_module(name));
    });
    MPX_CHECK(any, "config", key, " = ", text, ": must select a module with an adapter, such as ",
              "decoder.layers.0.self_attention.o_proj; correct it, or leave it out");
  };
  for (const std::string& target : peft.lora_target_modules)
    check("peft.lora_target_modules", target,
          [&](const std::string& module) { return config::is_target(target, module); });
  for (const auto& [key, entries] :
       {std::pair{"peft.rank_pattern", &peft.rank_pattern}, std::pair{"peft.alpha_pattern", &peft.alpha_pattern}}) {
    for (const std::string& entry : *entries)
      check(key, entry, [number = config::read_module_number(entry)](const std::string& module) {
        return config::matches_module(number->pattern, module);
      });
  }
}

// Every pattern of precision.recipe_pattern must select a layer.
void check_recipe_patterns(const config::Precision& precision, const std::vector<std::string>& names) {
  constexpr std::string_view kWeight = ".weight";
  for (const std::string& text : precision.recipe_pattern) {
    const std::string pattern = config::read_module_entry(text)->pattern;
    const bool any = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return name.ends_with(kWeight) && config::matches_module(pattern, name.substr(0, name.size() - kWeight.size()));
    });
    MPX_CHECK(any || config::matches_module(pattern, "output_layer"), "config", "precision.recipe_pattern = ", text,
              ": must select a linear layer, such as decoder.layers.0.mlp.linear_fc1; correct it, or leave it out");
  }
}

void check_name_patterns(const ProcessContext& process, const RankModel& model) {
  const std::vector<NamePattern> patterns = name_patterns(process.config);
  const config::Peft& peft = process.config.peft;
  const bool adapters =
      !peft.lora_target_modules.empty() || !peft.rank_pattern.empty() || !peft.alpha_pattern.empty();
  const bool none = patterns.empty() && !adapters && process.config.precision.recipe_pattern.empty();
  if (none || !has_all_stages(process)) return;
  const std::vector<std::string> names = gather_stage_names(process, model);
  check_patterns(patterns, names);
  check_adapter_names(peft, names);
  check_recipe_patterns(process.config.precision, names);
}

void check_patterns(const std::vector<NamePattern>& patterns, const std::vector<std::string>& names) {
  for (const auto& [key, pattern] : patterns) {
    const bool any = std::any_of(names.begin(), names.end(),
                                 [&](const std::string& name) { return config::matches(pattern, name); });
    const std::string near = any ? "" : base::nearest_name(pattern, names);
    MPX_CHECK(any, "config", key, ": no parameter has a name that '", pattern, "' matches as a whole; ",
              near.empty() ? "names are like decoder.layers.0.mlp.linear_fc1.weight" : "the nearest is " + near,
              " (metroplex inspect shows those of a checkpoint, * stands for any text). Correct it, or leave it out");
  }
}

void freeze(const ProcessContext& process, RankModel& model) {
  bool any = false;
  for (nn::Param* param : model.params) {
    param->frozen = !config::trains(process.config, param->name);
    any = any || !param->frozen;
  }
  for (nn::Buffer* buffer : model.buffers)
    buffer->frozen = !buffer->is_statistic && !config::trains(process.config, buffer->name);
  if (!has_all_stages(process)) return;
  const std::vector<std::string> stages = comm::all_gather_strings(any ? "x" : "", process.groups().stages);
  MPX_CHECK(std::any_of(stages.begin(), stages.end(), [](const std::string& stage) { return !stage.empty(); }),
            "config", "train.freeze and train.trainable leave no parameter to train",
            process.config.peft.lora()
                ? " (with peft.lora_rank only peft.modules_to_save and adapters can be, whose names "
                  "end in lora_A.weight and lora_B.weight)"
                : "",
            "; leave something out of them");
}

}  // namespace metroplex::step

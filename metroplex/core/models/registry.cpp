#include "models/registry.h"

#include "base/error.h"
#include "config/family.h"
#include "models/decoder.h"

namespace metroplex::models {

using BuildStage = nn::Blocks(const ModelContext& context, const StageSpec& stage);
BuildStage build_codegeex;  // block_codegeex.cpp

namespace {

// Builds every combination that config::Model can express; config/family.h defines the defaults of each family.
nn::Blocks build_plain(const ModelContext& context, const StageSpec& stage) { return build_decoder(context, stage); }

struct Family {
  const char* name;
  BuildStage* build;
};

constexpr Family kFamilies[] = {{"gpt", build_plain},
                                {"codegeex", build_codegeex},
                                {"llama", build_plain},
                                {"mixtral", build_plain},
                                {"qwen3_moe", build_plain}};

}  // namespace

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) names.emplace_back(family.name);
  return names;
}

nn::Blocks build_stage(const ModelContext& context, const StageSpec& stage) {
  MPX_CHECK(context.vocab_size > 1, "models", "a vocabulary of ", context.vocab_size,
            " tokens; set model.vocab_size or give a tokenizer");
  MPX_ASSERT(!context.model.sharded_initialization || context.streams, "sharded initialisation needs streams");
  config::check_family(context.model);
  for (const Family& family : kFamilies) {
    if (context.model.family == family.name) return family.build(context, stage);
  }
  const auto names = family_names();
  std::string known;
  for (const std::string& name : names) known += (known.empty() ? "" : ", ") + name;
  MPX_CHECK(false, "models", "model.family = '", context.model.family, "' is unknown; did you mean '",
            base::nearest_name(context.model.family, names), "'? Families: ", known);
  return {};
}

}  // namespace metroplex::models

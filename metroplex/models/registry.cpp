#include "models/registry.h"

#include "base/error.h"

namespace metroplex::models {

// Each in the file of its name.
using BuildStage = nn::Blocks(const ModelContext& context, const StageSlice& slice);
BuildStage build_gpt, build_codegeex, build_llama, build_mixtral, build_qwen3_moe;

namespace {

struct Family {
  const char* name;
  BuildStage* build;
};

constexpr Family kFamilies[] = {{"gpt", build_gpt},
                                {"codegeex", build_codegeex},
                                {"llama", build_llama},
                                {"mixtral", build_mixtral},
                                {"qwen3_moe", build_qwen3_moe}};

}  // namespace

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) names.emplace_back(family.name);
  return names;
}

nn::Blocks build_stage(const ModelContext& context, const StageSlice& slice) {
  MPX_CHECK(context.vocab_size > 1, "models", "a vocabulary of ", context.vocab_size,
            " tokens; set model.vocab_size or give a tokenizer");
  MPX_ASSERT(!context.model.sharded_initialization || context.init_streams,
             "sharded initialisation needs init_streams");
  for (const Family& family : kFamilies) {
    if (context.model.family == family.name) return family.build(context, slice);
  }
  const auto names = family_names();
  std::string known;
  for (const std::string& name : names) known += (known.empty() ? "" : ", ") + name;
  MPX_CHECK(false, "models", "model.family = '", context.model.family, "' is unknown; did you mean '",
            base::nearest_name(context.model.family, names), "'? Families: ", known);
  return {};
}

}  // namespace metroplex::models

// Suggested memory options: for recompute only modules that the model has and the rules allow.
#include "forecast/memory_options.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "config/load.h"
#include "config/validate.h"

namespace metroplex::test::memory_option_levels_test {
namespace {

config::Config with(const std::vector<std::string>& overrides) {
  return config::parse(
      "model: {num_layers: 4, vocab_size: 50, num_attention_heads: 4, add_bias_linear: false}\n"
      "train: {train_iters: 1}\ndata: {mock_data: true}\n",
      overrides);
}

// Modules of selective recompute in any of the options; each option must be a valid configuration.
std::set<std::string> modules_offered(const std::vector<std::string>& overrides) {
  std::set<std::string> modules;
  for (const forecast::OptionLevels& list : forecast::option_levels(config::resolved(with(overrides), 1), false)) {
    if (list.kind != forecast::OptionKind::recompute) continue;
    for (const forecast::OptionLevel& level : list.levels) {
      std::vector<std::string> all = overrides;
      all.insert(all.end(), level.settings.begin(), level.settings.end());
      const config::Config config = with(all);
      EXPECT_EQ(config::violations(config, 1).size(), 0U)
          << level.what << config::message(config::violations(config, 1));
      modules.insert(config.memory.recompute_modules.begin(), config.memory.recompute_modules.end());
    }
  }
  return modules;
}

using Set = std::set<std::string>;

TEST(OptionLevels, OffersToRecomputeWhatTheModelHas) {
  const Set dense{"activation", "core_attn", "layernorm", "mlp"};
  EXPECT_EQ(modules_offered({}), dense);
  EXPECT_EQ(modules_offered({"model.num_moe_experts=4"}), (Set{"core_attn", "layernorm", "moe", "moe_act"}));
  EXPECT_EQ(modules_offered({"model.num_moe_experts=4", "model.moe_layer_freq=2", "model.moe_grouped_gemm=false"}),
            (Set{"activation", "core_attn", "layernorm", "mlp", "moe"}));
  const std::vector<std::string> shared{"model.num_moe_experts=4", "model.moe_shared_expert_intermediate_size=64"};
  EXPECT_TRUE(modules_offered(shared).contains("shared_experts"));
  EXPECT_FALSE(
      modules_offered({shared[0], shared[1], "model.moe_shared_expert_overlap=true"}).contains("shared_experts"));
}

// 32 layers on 2 pipeline ranks with 2 chunks each: the square root of 8 is 3 layers at a time.
TEST(OptionLevels, WholeLayersAreTakenByTheRootOfAChunk) {
  const config::Config config = config::resolved(
      with({"model.num_layers=32", "parallel.tensor_model_parallel_size=2", "parallel.pipeline_model_parallel_size=2",
            "parallel.virtual_pipeline_model_parallel_size=2"}),
      4);
  std::set<std::string> names, chunks;
  size_t levels = 0;
  for (const forecast::OptionLevels& list : forecast::option_levels(config, false)) {
    if (list.kind != forecast::OptionKind::recompute) continue;
    for (const forecast::OptionLevel& level : list.levels) {
      ++levels;
      names.insert(level.what);
      for (const std::string& setting : level.settings) {
        if (setting.starts_with("memory.recompute_num_layers=")) chunks.insert(setting.substr(setting.find('=') + 1));
      }
    }
  }
  EXPECT_EQ(chunks, (Set{"1", "3"}));
  EXPECT_EQ(names.size(), levels) << "two levels have one name";
}

}  // namespace
}  // namespace metroplex::test::memory_option_levels_test

// Directories of PEFT: their settings, and rejected files. The values of read adapters are compared by
// metroplex_hf_parity.
#include "hf/adapters.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "config/load.h"
#include "config/validate.h"
#include "files/memory_file_system.h"
#include "hf/directories.h"
#include "hf/directory.h"
#include "support/error_of.h"

namespace metroplex::hf::adapters_test {
namespace {

using test::catch_error;

// Adapters of a directory of tests/vectors/hf in memory, in /a.
struct Fixture {
  files::PosixFileSystem real;
  files::MemoryFileSystem disk;
  std::string base;
  Json config;
  config::Model model;

  explicit Fixture(const std::string& name = "peft_qwen3") : base(test::kHfCases + name) {
    model = config::resolved(config::load("", hf::read_settings(real, base)), 1).model;
    config = Json::parse(real.read(base + "/adapter/adapter_config.json"));
    disk.make_directories("/a");
    disk.replace_file("/a/adapter_model.safetensors", real.read(base + "/adapter/adapter_model.safetensors"));
  }
  std::string settings_error() {
    write();
    return catch_error([&] { read_adapter_settings(disk, "/a", model); });
  }
  Settings settings() {
    write();
    return read_adapter_settings(disk, "/a", model);
  }
  std::string source_error() {
    write();
    return catch_error([&] { AdaptedWeights(disk, "/a", std::make_unique<Source>(real, base, model), model); });
  }
  void write() { disk.replace_file("/a/adapter_config.json", config.dump()); }
};

TEST(Adapters, SettingsHaveShortNamesWherePossible) {
  EXPECT_EQ(Fixture().settings(),
            Settings({"peft.lora_rank=4", "peft.lora_alpha=6", "peft.lora_dropout=0", "peft.use_rslora=true",
                      "peft.use_dora=false", "peft.lora_target_modules=gate_proj,k_proj,o_proj,q_proj",
                      "peft.rank_pattern=o_proj=2", "peft.alpha_pattern=decoder.layers.1.self_attention.q_proj=12"}));
}

TEST(Adapters, TargetsMayBeExpressionsAndLayers) {
  const auto targets = [](const Json& changes) {
    Fixture fixture("peft_llama");
    fixture.config.update(changes);
    return fixture.settings().at(5);
  };
  const std::string key = "peft.lora_target_modules=", layer = "decoder.layers.1.self_attention.";
  EXPECT_EQ(targets({{"target_modules", "all-linear"}}),
            key + "down_proj,gate_proj,k_proj,o_proj,q_proj,up_proj,v_proj");
  EXPECT_EQ(targets({{"target_modules", R"(model\.layers\.1\..*\.[qv]_proj)"}}),
            key + layer + "q_proj," + layer + "v_proj");
  EXPECT_EQ(targets({{"target_modules", {"self_attn.q_proj", "v_proj"}}, {"layers_to_transform", 1}}),
            key + layer + "q_proj," + layer + "v_proj");
  EXPECT_EQ(targets({{"layers_to_transform", {0, 1}}, {"exclude_modules", {"layers.0.self_attn.q_proj", "v_proj"}}}),
            key + layer + "q_proj,down_proj");
}

// The order of the file, not of the names.
TEST(Adapters, FirstPatternOfTheFileCounts) {
  Fixture fixture;
  fixture.write();
  std::string text = fixture.disk.read("/a/adapter_config.json");
  const std::string before = R"("rank_pattern":{"o_proj":2})";
  text.replace(text.find(before), before.size(), R"("rank_pattern":{"o_.*":3,"layers.0.self_attn.o_proj":5})");
  fixture.disk.replace_file("/a/adapter_config.json", text);
  EXPECT_EQ(read_adapter_settings(fixture.disk, "/a", fixture.model).at(6), "peft.rank_pattern=o_proj=3");
}

TEST(Adapters, UnsupportedKeysAreRefusedByName) {
  const std::pair<Json, const char*> cases[] = {
      {{{"peft_type", "LOHA"}}, "adapter_config.json: peft_type is \"LOHA\""},
      {{{"bias", "all"}}, "adapter_config.json: bias is \"all\""},
      {{{"use_qalora", true}}, "adapter_config.json: use_qalora is true"},
      {{{"lora_bias", true}}, "adapter_config.json: lora_bias is true"},
      {{{"init_lora_weights", "pissa"}}, "adapter_config.json: init_lora_weights is \"pissa\""},
      {{{"loftq_config", {{"loftq_bits", 4}}}}, "adapter_config.json: loftq_config is"},
      {{{"target_parameters", {"mlp.experts.down_proj"}}}, "adapter_config.json: target_parameters is"},
      {{{"layer_replication", {{0, 2}}}}, "adapter_config.json: layer_replication = [[0,2]]: not supported"},
      {{{"trainable_token_indices", {1}}}, "adapter_config.json: trainable_token_indices = [1]: not supported"},
      {{{"a_new_key", 1}}, "adapter_config.json: a_new_key = 1: not supported"},
      {{{"r", 0}}, "adapter_config.json: r is 0"},
      {{{"r", "4"}}, "adapter_config.json: r is not a whole number"},
      {{{"lora_alpha", -1}}, "adapter_config.json: lora_alpha is -1"},
      {{{"rank_pattern", {{"(?P<x>o_proj)", 2}}}}, "rank_pattern: (?P<x>o_proj) = 2: must be a regular expression"},
      {{{"alpha_pattern", {{"o_proj", "2"}}}}, "alpha_pattern: o_proj = \"2\": must be"},
      {{{"target_modules", "(?P<x>o_proj)"}}, "target_modules = (?P<x>o_proj): is not a regular expression"},
      {{{"target_modules", {1}}}, "adapter_config.json: target_modules is [1]"},
      {{{"target_modules", {"c_attn"}}}, "target_modules in adapter_config.json select no layer"},
      {{{"modules_to_save", {"norm"}}}, "modules_to_save = norm: must be embed_tokens"},
  };
  for (const auto& [changes, message] : cases) {
    Fixture fixture;
    fixture.config.update(changes);
    const std::string error = fixture.settings_error();
    EXPECT_NE(error.find(message), std::string::npos) << message << ": " << error;
  }
}

TEST(Adapters, MissingAndSurplusTensorsAreListed) {
  EXPECT_EQ(Fixture().source_error(), "");
  Fixture more, fewer, other;
  more.config["target_modules"].push_back("v_proj");
  const std::string missing = more.source_error();
  EXPECT_NE(missing.find("base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight is missing"),
            std::string::npos)
      << missing;
  fewer.config["target_modules"] = {"q_proj", "k_proj", "o_proj"};
  const std::string surplus = fewer.source_error();
  EXPECT_NE(surplus.find("layers.1.mlp.gate_proj.lora_B.weight does not belong to an adapter"), std::string::npos)
      << surplus;
  other.config["rank_pattern"] = Json::object();
  const std::string shape = other.source_error();
  EXPECT_NE(
      shape.find("layers.0.self_attn.o_proj.lora_A.weight has shape [2, 48], but adapter_config.json and the model "
                 "require [4, 48]"),
      std::string::npos)
      << shape;
  Fixture fileless;
  fileless.disk.remove("/a/adapter_model.safetensors");
  EXPECT_NE(fileless.source_error().find("safe_serialization=True"), std::string::npos);
}

// The experts of a layer are one parameter.
TEST(Adapters, RoutedExpertsHaveOneRankAndTarget) {
  files::PosixFileSystem real;
  const config::Model model =
      config::resolved(config::load("", hf::read_settings(real, test::kHfCases + "mixtral")), 1).model;
  const auto read = [&](const Json& config) {
    files::MemoryFileSystem disk;
    disk.make_directories("/a");
    disk.replace_file("/a/adapter_config.json", config.dump());
    return read_adapter_settings(disk, "/a", model);
  };
  Json config{{"peft_type", "LORA"}, {"r", 2}, {"target_modules", {"w1", "w2", "w3", "q_proj"}}};
  EXPECT_EQ(read(config).at(5),
            "peft.lora_target_modules=experts.down_proj,experts.gate_proj,experts.up_proj,q_proj");
  config["rank_pattern"] = {{"experts.1.w1", 3}};
  const std::string rank = catch_error([&] { read(config); });
  EXPECT_NE(rank.find("rank_pattern: model.layers.0.block_sparse_moe.experts.1.w1 differs from another"),
            std::string::npos)
      << rank;
  config["rank_pattern"] = {{"w1", 2.5}};
  const std::string fraction = catch_error([&] { read(config); });
  EXPECT_NE(fraction.find("rank_pattern: w1 = 2.5: must be"), std::string::npos) << fraction;
  config.erase("rank_pattern");
  config["target_modules"] = {"experts.0.w1"};
  const std::string target = catch_error([&] { read(config); });
  EXPECT_NE(target.find("target_modules: model.layers.0.block_sparse_moe.experts.1.w1 differs"), std::string::npos)
      << target;
}

TEST(Adapters, SeveralNamesAreListed) {
  Fixture fixture;
  fixture.disk.make_directories("/several/second");
  fixture.disk.make_directories("/several/first");
  fixture.disk.make_directories("/several/none");
  for (const char* name : {"first", "second"})
    fixture.disk.replace_file(std::string("/several/") + name + "/adapter_config.json", "{}");
  const auto error = [&](const char* path) {
    return catch_error([&] { read_adapter_settings(fixture.disk, path, fixture.model); });
  };
  EXPECT_NE(error("/several")
                .find("peft.from = /several: contains several adapters: first, second; name one, such as "
                      "/several/first"),
            std::string::npos)
      << error("/several");
  EXPECT_NE(error("/several/none").find("peft.from = /several/none: has no adapter_config.json"), std::string::npos);
}

}  // namespace
}  // namespace metroplex::hf::adapters_test

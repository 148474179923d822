// Token ids and generation settings of config.json and generation_config.json.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "config/load.h"
#include "hf/directories.h"
#include "hf/directory.h"
#include "support/folder.h"

namespace metroplex::hf::special_ids_test {
namespace {

files::PosixFileSystem disk;

// settings() and config() are inverse. The ids of both files pass through the keys of a run.
TEST(HfSpecialIds, PassThroughTheConfigOfARun) {
  const test::Folder folder;
  const Json ids{{"bos_token_id", 1}, {"eos_token_id", {2, 3}}, {"pad_token_id", nullptr}};
  const Json generation{{"do_sample", true}, {"eos_token_id", {4, 5}}, {"temperature", 0.6}, {"top_p", 0.95}};
  Json config = Json::parse(disk.read(test::kHfCases + "qwen3/config.json"));
  config.update(ids);
  const auto model_with = [&](const Json& with, const Json& other) {
    std::ofstream(folder.at("config.json")) << with;
    std::filesystem::remove(folder.at("generation_config.json"));
    if (!other.is_null()) std::ofstream(folder.at("generation_config.json")) << other;
    const config::Config read = config::load("", read_settings(disk, folder.path()));
    return config::parse_saved(config::dump(read)).model;
  };
  const config::Model both = model_with(config, generation);
  Json written = Json::object();
  add_special_ids(both, written);
  EXPECT_EQ(written, ids);
  EXPECT_EQ(generation_config(both), generation);
  EXPECT_EQ(end_token_ids(both), (std::vector<int64_t>{4, 5}));
  const config::Model one = model_with(config, nullptr);
  EXPECT_EQ(end_token_ids(one), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(generation_config(one)["eos_token_id"], ids["eos_token_id"]);
  EXPECT_EQ(generation_config(model_with(config, Json::object())), Json::object());
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) config.erase(key);
  const config::Model none = model_with(config, Json::object());
  EXPECT_TRUE(end_token_ids(none).empty());
  written = Json::object();
  add_special_ids(none, written);
  EXPECT_TRUE(written.empty());
}

// Directories without generation_config.json may have its settings in config.json, where transformers reads them.
TEST(HfSpecialIds, GenerationSettingsOfConfigAreKept) {
  const test::Folder folder;
  Json config = Json::parse(disk.read(test::kHfCases + "qwen3/config.json"));
  config.update(Json{{"eos_token_id", 2},
                     {"unk_token_id", 0},
                     {"decoder_start_token_id", 4},
                     {"temperature", 0.3},
                     {"max_length", 50},
                     {"top_k", nullptr}});
  std::ofstream(folder.at("config.json")) << config;
  const config::Model model = config::load("", read_settings(disk, folder.path())).model;
  const Json generation = generation_config(model);
  EXPECT_EQ(generation["temperature"], 0.3);
  EXPECT_EQ(generation["max_length"], 50);
  EXPECT_EQ(generation["eos_token_id"], 2);
  EXPECT_EQ(generation["decoder_start_token_id"], 4);
  EXPECT_FALSE(generation.contains("unk_token_id") || generation.contains("top_k"));
  Json written = Json::object();
  add_special_ids(model, written);
  EXPECT_EQ(written["unk_token_id"], 0);
}

}  // namespace
}  // namespace metroplex::hf::special_ids_test

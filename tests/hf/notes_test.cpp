// Notes about parts of a directory that are not read.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "hf/directories.h"
#include "hf/directory.h"
#include "support/folder.h"

namespace metroplex::hf::notes_test {
namespace {

using test::has;

files::PosixFileSystem disk;

TEST(HfConfig, CodeOfTheDirectoryIsNoted) {
  const test::Folder folder;
  Json json = Json::parse(disk.read(test::kHfCases + "qwen3/config.json"));
  EXPECT_TRUE(directory_notes(disk, test::kHfCases + "qwen3").empty());
  json["auto_map"] = {{"AutoModelForCausalLM", "modeling.Model"}};
  std::ofstream(folder.at("config.json")) << json;
  EXPECT_TRUE(has(directory_notes(disk, folder.path()).at(0), "config.json' has auto_map"));
}

// As in transformers, which writes no such layers.
TEST(HfConfig, MissingMultiTokenLayersAreNoted) {
  const std::string directory = test::kHfCases + "deepseek_v3";
  const test::Folder folder;
  std::filesystem::copy(directory, folder.at("d"));
  std::filesystem::permissions(folder.at("d/config.json"), std::filesystem::perms::owner_all);
  Json json = Json::parse(disk.read(directory + "/config.json"));
  for (const int layers : {0, 2}) {
    json["num_nextn_predict_layers"] = layers;
    std::ofstream(folder.at("d/config.json")) << json;
    const std::vector<std::string> notes = directory_notes(disk, folder.at("d"));
    EXPECT_EQ(notes.size(), layers == 0 ? 0u : 1u);
    EXPECT_EQ(test::read_hf_model(folder.at("d")).mtp_num_layers, 0);
    if (!notes.empty()) { EXPECT_TRUE(has(notes[0], "num_nextn_predict_layers = 2: the weight files have no")); }
  }
}

}  // namespace
}  // namespace metroplex::hf::notes_test

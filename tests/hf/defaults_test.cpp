// Keys missing in a config.json mean the same as in transformers 5.23.0: tests/vectors/hf/defaults.json records the
// value that the class of each family gives to a removed key.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "hf/directory.h"
#include "hf/directories.h"
#include "support/error_of.h"
#include "support/folder.h"

namespace metroplex::hf::defaults_test {
namespace {

std::vector<std::string> settings_of_config(const Json& config) {
  const test::Folder folder;
  std::ofstream(folder.at("config.json")) << config;
  files::PosixFileSystem disk;
  std::vector<std::string> settings;
  const std::string error = test::catch_error([&] { settings = read_settings(disk, folder.path()); });
  if (!error.empty()) return {error};
  std::sort(settings.begin(), settings.end());
  return settings;
}

TEST(HfConfigDefaults, EqualThoseOfTransformers) {
  files::PosixFileSystem disk;
  const Json recorded = Json::parse(disk.read(test::kHfCases + "defaults.json"));
  size_t read = 0;
  for (const Json& item : recorded["cases"]) {
    const std::string directory = item["directory"], key = item["without"];
    Json without = Json::parse(disk.read(test::kHfCases + directory + "/config.json")), with = without;
    without.erase(key);
    without.update(item.value("with", Json::object()));
    with[key] = item["means"];
    const std::vector<std::string> expected = settings_of_config(with), found = settings_of_config(without);
    EXPECT_EQ(found, expected) << directory << " without " << key << ", which means " << item["means"];
    read += expected.size() > 1;
  }
  EXPECT_GT(read, 200u) << "of " << recorded["cases"].size();
}

}  // namespace
}  // namespace metroplex::hf::defaults_test

#include "text/support.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

namespace metroplex::text::testing {
namespace fs = std::filesystem;
namespace {

std::string from_base64(const std::string& text) {
  const std::string alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    if (c == '=') break;
    bits = bits << 6 | static_cast<uint32_t>(alphabet.find(c));
    count += 6;
    if (count >= 8) out += static_cast<char>(bits >> (count -= 8) & 0xFF);
  }
  return out;
}

}  // namespace

std::vector<std::string> vector_folders() {
  std::vector<std::string> folders;
  for (const auto& entry : fs::directory_iterator(METROPLEX_SOURCE_DIR "/tests/vectors/tokenizers")) {
    if (fs::exists(entry.path() / "cases.json")) folders.push_back(entry.path().string());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

nlohmann::json read_json(const std::string& path) { return nlohmann::json::parse(read_file(path)); }
bool exists(const std::string& path) { return fs::exists(path); }

std::string case_text(const nlohmann::json& item) {
  return item.contains("text") ? item["text"].get<std::string>()
                               : from_base64(item.at("text_base64").get<std::string>());
}

TemporaryFolder::TemporaryFolder() {
  std::random_device entropy;
  path_ = (fs::temp_directory_path() / ("metroplex_text_" + std::to_string(entropy()))).string();
  fs::create_directories(path_);
}
TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string TemporaryFolder::write(const std::string& name, std::string_view content) const {
  const std::string path = path_ + "/" + name;
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

TEST(TextTests, FindVectorsOfEveryKind) {
  int json = 0, model = 0;
  for (const std::string& folder : vector_folders()) {
    json += exists(folder + "/tokenizer.json");
    model += exists(folder + "/tokenizer.model");
  }
  EXPECT_GT(json, 0);
  EXPECT_GT(model, 0);
}

}  // namespace metroplex::text::testing

// Every folder of tests/vectors/tokenizers, id for id and byte for byte.
#include <gtest/gtest.h>

#include "text/tokenizer.h"
#include "text/support.h"

namespace metroplex::text::vectors_test {
namespace {

using testing::case_text;
using testing::read_json;
using Ids = std::vector<int32_t>;

class TokenizerVectors : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Tokenizer> load() const { return load_tokenizer("", GetParam(), "", "", InvalidUtf8::replace); }
};

TEST_P(TokenizerVectors, EncodeAndDecodeEveryCase) {
  const auto tokenizer = load();
  const auto cases = read_json(GetParam() + "/cases.json");
  ASSERT_FALSE(cases.empty());
  for (const auto& item : cases) {
    const std::string text = case_text(item);
    const Ids ids = item.at("ids").get<Ids>();
    EXPECT_EQ(tokenizer->encode(text), ids) << item.dump();
    if (item.contains("ids_with_special")) {
      EXPECT_EQ(tokenizer->encode_with_special(text), item["ids_with_special"].get<Ids>()) << item.dump();
    }
    if (item.contains("decoded")) {
      EXPECT_EQ(tokenizer->decode(ids), item["decoded"].get<std::string>()) << item.dump();
    }
    for (const int32_t id : ids) ASSERT_LT(id, tokenizer->vocab_size());
  }
}

TEST_P(TokenizerVectors, DecodeAnyIds) {
  const std::string path = GetParam() + "/decode_cases.json";
  if (!testing::exists(path)) return;
  const auto tokenizer = load();
  for (const auto& item : read_json(path)) {
    const Ids ids = item.at("ids").get<Ids>();
    EXPECT_EQ(tokenizer->decode(ids), item.at("decoded").get<std::string>()) << item.dump();
    if (item.contains("decoded_skip_special")) {
      EXPECT_EQ(tokenizer->decode_skip_special(ids), item["decoded_skip_special"].get<std::string>()) << item.dump();
    }
  }
}

TEST_P(TokenizerVectors, KnowTheEndOfADocument) {
  const auto tokenizer = load();
  ASSERT_TRUE(tokenizer->eod().has_value());
  const std::string config = GetParam() + "/tokenizer_config.json";
  if (!testing::exists(config)) return;
  const auto json = read_json(config);
  if (json.contains("eos_token") && json["eos_token"].is_string()) {
    EXPECT_EQ(tokenizer->id_to_token(*tokenizer->eod()), json["eos_token"].get<std::string>());
  }
}

TEST_P(TokenizerVectors, SpellEveryIdAndFindItAgain) {
  const auto tokenizer = load();
  int64_t spelled = 0;
  for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
    const std::string token = tokenizer->id_to_token(id);
    if (token.empty()) continue;
    ++spelled;
    ASSERT_EQ(tokenizer->token_to_id(token), id) << token;
  }
  EXPECT_EQ(spelled, tokenizer->vocab_size());
  EXPECT_EQ(tokenizer->id_to_token(-1), "");
  EXPECT_EQ(tokenizer->id_to_token(static_cast<int32_t>(tokenizer->vocab_size())), "");
}

// GPT-2's two files, if present, give the same ids as tokenizer.json, except for added tokens and a prefix space,
// which they cannot represent.
TEST_P(TokenizerVectors, VocabAndMergesGiveTheSameIds) {
  if (!testing::exists(GetParam() + "/vocab.json") || !testing::exists(GetParam() + "/merges.txt")) return;
  const auto json = read_json(GetParam() + "/tokenizer.json");
  if (json["pre_tokenizer"].value("add_prefix_space", false)) return;
  const auto tokenizer = load_tokenizer("bpe", "", GetParam() + "/vocab.json", GetParam() + "/merges.txt");
  int compared = 0;
  for (const auto& item : read_json(GetParam() + "/cases.json")) {
    if (!item.contains("text")) continue;
    const std::string text = item["text"];
    bool has_added = false;
    for (const auto& token : json["added_tokens"])
      has_added |= text.find(token["content"].get<std::string>()) != text.npos;
    if (has_added) continue;
    EXPECT_EQ(tokenizer->encode(text), item["ids"].get<Ids>()) << item.dump();
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

std::string folder_name(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param.substr(info.param.find_last_of('/') + 1);
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Folders, TokenizerVectors, ::testing::ValuesIn(testing::vector_folders()), folder_name);

}  // namespace
}  // namespace metroplex::text::vectors_test

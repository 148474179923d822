// The source bytes of each token, as in the tokenizers and sentencepiece packages
// (tests/vectors/tokenizers/ranges.json, by tests/transformers/range_vectors.py).
#include <gtest/gtest.h>

#include <algorithm>

#include "text/chat_template.h"
#include "text/normal_forms.h"
#include "text/support.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace metroplex::text::ranges_test {
namespace {

using Json = nlohmann::json;
using testing::TemporaryFolder;

const std::string kTokenizers = "tests/vectors/tokenizers/";

std::unique_ptr<Tokenizer> load_kind(const Json& kind, const TemporaryFolder& scratch) {
  const std::string folder = kTokenizers + kind["folder"].get<std::string>();
  if (kind["changes"].empty()) return load_tokenizer("", folder);
  Json file = testing::read_json(folder + "/tokenizer.json");
  for (const auto& [key, value] : kind["changes"].items()) {
    if (key == "model") file[key].update(value);
    else file[key] = value;
  }
  return load_tokenizer("", scratch.write("tokenizer.json", file.dump()));
}

TEST(TokenRanges, EqualThePackages) {
  const Json kinds = testing::read_json(kTokenizers + "ranges.json")["kinds"];
  for (const Json& kind : kinds) {
    const TemporaryFolder scratch;
    const auto tokenizer = load_kind(kind, scratch);
    for (const Json& one : kind["cases"]) {
      const std::string text = one["text"];
      const LocatedIds located = tokenizer->encode_with_ranges(text);
      Json ranges = Json::array();
      for (const TextRange& range : located.ranges) ranges.push_back({range.begin, range.end});
      EXPECT_EQ(Json(located.ids), one["ids"]) << kind["name"] << one["text"];
      EXPECT_EQ(ranges, one["ranges"]) << kind["name"] << one["text"];
      EXPECT_EQ(located.ids, tokenizer->encode(text)) << kind["name"] << one["text"];
    }
    EXPECT_GE(kind["cases"].size(), 50u);
  }
  EXPECT_EQ(kinds.size(), 20u);
}

TEST(TokenRanges, TokenizersWithoutFiles) {
  const auto bytes = load_tokenizer("bytes", "");
  const LocatedIds located = bytes->encode_with_ranges("a\xc3\xa9");
  ASSERT_EQ(located.ranges.size(), 3u);
  EXPECT_EQ(located.ranges[2].begin, 2u);
  EXPECT_EQ(located.ranges[2].end, 3u);
  const auto none = load_tokenizer("none", "100");
  const LocatedIds numbers = none->encode_with_ranges(" 7  42");
  ASSERT_EQ(numbers.ids, (std::vector<int32_t>{7, 42}));
  EXPECT_EQ(numbers.ranges[1].begin, 4u);
  EXPECT_EQ(numbers.ranges[1].end, 6u);
}

// Normalization with source ranges writes the same text as the fast version, for every character alone and between
// others.
TEST(TokenRanges, AlignedNormalizingWritesTheSameText) {
  for (char32_t c = 0x80; c < 0x30000; ++c) {
    if (c == 0xD800) c = 0xE000;
    std::string text = "A\xCC\xA7\xE1\x84\x80";
    append_utf8(text, c);
    text += "\xCC\x81\xCC\xA3z";
    for (const NormalForm form : {NormalForm::nfc, NormalForm::nfd, NormalForm::nfkc, NormalForm::nfkd}) {
      Sources sources;
      const std::string aligned = normalize(text, form, &sources);
      ASSERT_EQ(aligned, normalize(text, form, nullptr)) << static_cast<unsigned>(c);
      ASSERT_EQ(sources.size(), aligned.size()) << static_cast<unsigned>(c);
    }
  }
}

TEST(TokenRanges, InvalidTextIsRefused) {
  for (const char* folder : {"qwen2", "sentencepiece_bpe"}) {
    const auto tokenizer = load_tokenizer("", kTokenizers + folder);
    EXPECT_NE(testing::catch_error([&] { tokenizer->encode_with_ranges("ab\xff"); }).find("byte 2"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace metroplex::text::ranges_test

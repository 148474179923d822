// Oniguruma's regular expressions match what they match in the tokenizers package
// (tests/vectors/tokenizers/regex.json, by tests/transformers/regex_vectors.py).
#include "text/regex.h"

#include <gtest/gtest.h>

#include "text/support.h"

namespace metroplex::text::regex_test {
namespace {

using Json = nlohmann::json;
using Ranges = std::vector<TextRange>;

Json recorded() { return testing::read_json("tests/vectors/tokenizers/regex.json"); }

Ranges find_matches(const std::string& regex, const std::string& text) {
  RegexScratch scratch;
  Ranges matches;
  Regex(regex).find_all(text, scratch, matches);
  return matches;
}

// The parts of `text` after an isolating split.
Json isolate(const std::string& regex, const std::string& text) {
  Json parts = Json::array();
  size_t at = 0;
  const auto add = [&](size_t end) {
    if (end > at) parts.push_back({at, end});
    at = end;
  };
  for (const TextRange& match : find_matches(regex, text)) {
    add(match.begin);
    add(match.end);
  }
  add(text.size());
  return parts;
}

std::string all_characters() {
  std::string text;
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code < 0xD800 || code >= 0xE000) append_utf8(text, code);
  }
  return text;
}

TEST(Regex, ClassesMatchOniguruma) {
  const std::string characters = all_characters();
  const Json classes = recorded()["classes"];
  for (const Json& item : classes) {
    uint64_t count = 0, sum = 0, squares = 0;
    for (const TextRange& match : find_matches(item["regex"], characters)) {
      for (size_t at = match.begin; at < match.end;) {
        const uint64_t code = next_code_point(characters, at);
        ++count, sum += code, squares += code * code;
      }
    }
    EXPECT_EQ(count, item["count"].get<uint64_t>()) << item["regex"];
    EXPECT_EQ(sum, item["sum"].get<uint64_t>()) << item["regex"];
    EXPECT_EQ(squares, item["squares"].get<uint64_t>()) << item["regex"];
  }
  EXPECT_GE(classes.size(), 50u);
}

TEST(Regex, OperatorsMatchOniguruma) {
  const Json texts = recorded()["texts"];
  for (const Json& item : texts)
    EXPECT_EQ(isolate(item["regex"], item["text"]), item["ranges"]) << item["regex"] << " in " << item["text"];
  EXPECT_GE(texts.size(), 25u);
}

TEST(Regex, RefusesUnknownClasses) {
  EXPECT_NE(testing::catch_error([] { Regex("[[:Alpha:]]"); }).find("[:Alpha:] is not a class"), std::string::npos);
  EXPECT_NE(testing::catch_error([] { Regex("[[:alpha]"); }).find("[: has no :]"), std::string::npos);
}

}  // namespace
}  // namespace metroplex::text::regex_test

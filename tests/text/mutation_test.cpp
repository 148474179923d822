// Damaged tokenizer files: after any damage a file loads and works, or is rejected with base::Error. Also runs under
// the sanitizers.
#include <gtest/gtest.h>

#include <random>

#include "text/json_tokenizer.h"
#include "text/sentencepiece_tokenizer.h"
#include "text/sentencepiece_train.h"
#include "text/support.h"
#include "text/utf8.h"

namespace metroplex::text::mutation_test {
namespace {

using testing::read_file;

constexpr const char* kText =
    "int main() {\n  return 42; }\t\xC3\xA9\xF0\x9F\x98\x80 na\xC3\xAFve \xEF\xBC\xA1\xE2\x85\xA3 don't  <s> TODO";

// Changes one to four bytes, removes or duplicates a range, or truncates the end.
std::string mutate(const std::string& content, std::mt19937& random) {
  std::string out = content;
  const auto below = [&](size_t n) { return n == 0 ? 0 : random() % n; };
  switch (below(6)) {
    case 0:
      out.resize(below(out.size()));
      break;
    case 1: {
      const size_t begin = below(out.size());
      out.erase(begin, 1 + below(64));
      break;
    }
    case 2: {
      const size_t begin = below(out.size());
      out.insert(below(out.size()), out.substr(begin, 1 + below(64)));
      break;
    }
    default:
      for (size_t n = 1 + below(4); n > 0; --n) {
        static constexpr char kUseful[] = "{}[]\",:0129-eE\\utfn\x7f";
        out[below(out.size())] = below(2) ? static_cast<char>(below(256)) : kUseful[below(sizeof kUseful - 1)];
      }
  }
  return out;
}

struct Outcome {
  int accepted = 0, refused = 0;
};

template <class Load>
void try_one(const std::string& content, Load load, Outcome& outcome) {
  try {
    const auto tokenizer = load(content);
    const auto ids = tokenizer->encode_with_special(kText);
    const std::string text = tokenizer->decode(ids);
    ASSERT_EQ(valid_utf8_prefix(text), text.size());
    ++outcome.accepted;
  } catch (const base::Error& error) {
    ASSERT_GT(std::string(error.what()).size(), 12u);
    ++outcome.refused;
  }
}

std::unique_ptr<Tokenizer> load_json(const std::string& content) {
  return std::make_unique<JsonTokenizer>(parse_tokenizer_json(content, "file"), SpecialNames{}, InvalidUtf8::replace);
}
std::unique_ptr<Tokenizer> load_model(const std::string& content) {
  return std::make_unique<SentencePieceTokenizer>(content, "file", SpecialNames{}, InvalidUtf8::replace);
}

// A file of the vectors with few merges and only the tokens that they and the rest of the file need. Damage then hits
// relevant content, and loading is fast.
nlohmann::json reduce_input(const std::string& path, size_t num_merges) {
  auto json = testing::read_json(path);
  auto& model = json["model"];
  const auto vocab = model["vocab"];
  auto merges = nlohmann::json::array(), needed = nlohmann::json::object();
  const auto need = [&](const std::string& token) {
    if (vocab.contains(token)) needed[token] = vocab[token];
  };
  for (size_t i = 0; i < num_merges && i < model["merges"].size(); ++i) {
    const auto& merge = merges.emplace_back(model["merges"][i]);
    need(merge[0]);
    need(merge[1]);
    need(merge[0].get<std::string>() + merge[1].get<std::string>());
  }
  for (const auto& token : json["added_tokens"]) need(token["content"]);
  for (const char* token : {"a", "t", "<0x41>"}) need(token);
  if (model["unk_token"].is_string()) need(model["unk_token"]);
  model["vocab"] = needed;
  model["merges"] = merges;
  return json;
}

TEST(DamagedTokenizerJson, IsRefusedOrWorks) {
  std::mt19937 random(20240611);
  Outcome outcome;
  for (const std::string& folder : testing::vector_folders()) {
    if (!testing::exists(folder + "/tokenizer.json")) continue;
    const std::string content = reduce_input(folder + "/tokenizer.json", 20).dump();
    for (int i = 0; i < 300; ++i) try_one(mutate(content, random), load_json, outcome);
  }
  EXPECT_GT(outcome.accepted, 0);
  EXPECT_GT(outcome.refused, outcome.accepted / 10);
}

// Replaces values by others of the wrong type or size, at every location of the file outside of the long lists.
TEST(DamagedTokenizerJson, IsRefusedOrWorksWithAnyValueReplaced) {
  const nlohmann::json replacements[] = {nullptr,
                                         true,
                                         -1,
                                         1e300,
                                         4294967296,
                                         "",
                                         "x",
                                         "[",
                                         "Sequence",
                                         nlohmann::json::array(),
                                         nlohmann::json::object(),
                                         nlohmann::json::array({1})};
  Outcome outcome;
  for (const std::string& folder : testing::vector_folders()) {
    if (!testing::exists(folder + "/tokenizer.json")) continue;
    const auto json = reduce_input(folder + "/tokenizer.json", 2);
    const auto places = json.flatten();
    for (const auto& [pointer, ignored] : places.items()) {
      for (const auto& value : replacements) {
        auto damaged = json;
        damaged[nlohmann::json::json_pointer(pointer)] = value;
        try_one(damaged.dump(), load_json, outcome);
      }
    }
  }
  EXPECT_GT(outcome.accepted, 0);
  EXPECT_GT(outcome.refused, 100);
}

TEST(DamagedSentencePieceModel, IsRefusedOrWorks) {
  std::mt19937 random(7);
  Outcome outcome;
  for (const std::string& folder : testing::vector_folders()) {
    if (!testing::exists(folder + "/tokenizer.model")) continue;
    const std::string content = read_file(folder + "/tokenizer.model");
    const int rounds = content.size() > 100000 ? 100 : 1500;  // reading a large character map takes long
    for (int i = 0; i < rounds; ++i) try_one(mutate(content, random), load_model, outcome);
    // The end of the file holds the specifications of trainer and normalizer.
    for (int i = 0; i < rounds / 3; ++i) {
      std::string damaged = content;
      damaged[damaged.size() - 1 - random() % 400] = static_cast<char>(random());
      try_one(damaged, load_model, outcome);
    }
  }
  EXPECT_GT(outcome.accepted, 0);
  EXPECT_GT(outcome.refused, 100);
}

// The character map of nmt_nfkc is a trie that the library follows without bounds checks.
TEST(DamagedSentencePieceModel, IsRefusedOrWorksWithACharacterMap) {
  SentencePieceTraining training;
  training.vocab_size = 280;
  training.normalization = "nmt_nfkc";
  int line = 0;
  const std::string content = train_sentencepiece(training, [&]() -> std::optional<std::string> {
    if (line++ == 200) return std::nullopt;
    return "line " + std::to_string(line) + " of a text to train on";
  });
  std::mt19937 random(11);
  Outcome outcome;
  try_one(content, load_model, outcome);
  ASSERT_EQ(outcome.accepted, 1);
  for (int i = 0; i < 400; ++i) {
    std::string damaged = content;
    for (int n = 0; n < 20; ++n) damaged[random() % damaged.size()] = static_cast<char>(random());
    try_one(damaged, load_model, outcome);
  }
  EXPECT_GT(outcome.refused, 100);
}

}  // namespace
}  // namespace metroplex::text::mutation_test

// Special tokens: those that a tokenizer adds to a text, those that end it, and their decoding. Expected ids and
// texts are those of transformers 5.23.0 and tokenizers 0.23.3.
#include <gtest/gtest.h>

#include "text/support.h"
#include "text/tokenizer.h"

namespace metroplex::text::special_tokens_test {
namespace {

using nlohmann::json;
using testing::TemporaryFolder;
using Ids = std::vector<int32_t>;

const std::string kVectors = METROPLEX_SOURCE_DIR "/tests/vectors/tokenizers/";

json vector_json(const std::string& name) { return testing::read_json(kVectors + name + "/tokenizer.json"); }

json added_token(int id, const std::string& content, bool normalized, bool special) {
  return {{"id", id},        {"content", content},       {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", normalized}, {"special", special}};
}

// A tokenizer.json in its own folder, with other files next to it.
std::unique_ptr<Tokenizer> load(const json& tokenizer,
                                const std::vector<std::pair<std::string, std::string>>& more = {}) {
  const TemporaryFolder folder;
  for (const auto& [name, text] : more) folder.write(name, text);
  return load_tokenizer("", folder.write("tokenizer.json", tokenizer.dump()));
}

struct Flags {
  const char* config;  // tokenizer_config.json
  Ids before, after;
};

void expect_special_tokens(const Tokenizer& tokenizer, const Flags& flags) {
  const SpecialTokens special = tokenizer.special_tokens();
  EXPECT_EQ(special.before, flags.before) << flags.config;
  EXPECT_EQ(special.after, flags.after) << flags.config;
  Ids all = flags.before;
  const Ids text = tokenizer.encode("hello");
  all.insert(all.end(), text.begin(), text.end());
  all.insert(all.end(), flags.after.begin(), flags.after.end());
  EXPECT_EQ(tokenizer.encode_with_special("hello"), all) << flags.config;
}

TEST(SpecialTokens, FollowFlagsForSentencePiece) {
  const std::string model = testing::read_file(kVectors + "sentencepiece_bpe/tokenizer.model");
  for (const Flags& flags :
       {Flags{R"({"tokenizer_class": "LlamaTokenizer", "add_bos_token": true})", {1}, {}},
        Flags{R"({"tokenizer_class": "LlamaTokenizer", "add_bos_token": true, "add_eos_token": true})", {1}, {2}},
        Flags{R"({"tokenizer_class": "LlamaTokenizer", "add_bos_token": false})", {}, {}},
        Flags{R"({"tokenizer_class": "GemmaTokenizer", "add_bos_token": true, "add_eos_token": null})", {1}, {}},
        Flags{R"({"tokenizer_class": "LlamaTokenizer"})", {}, {}},
        Flags{R"({"tokenizer_class": "CodeLlamaTokenizer"})", {1}, {}},
        Flags{R"({"tokenizer_class": "CodeLlamaTokenizer", "add_bos_token": false})", {}, {}},
        Flags{R"({"tokenizer_class": "T5Tokenizer"})", {}, {2}}, Flags{R"({"add_eos_token": true})", {}, {2}},
        Flags{R"({"add_bos_token": true, "bos_token": "</s>"})", {2}, {}}}) {
    const TemporaryFolder folder;
    folder.write("tokenizer_config.json", flags.config);
    expect_special_tokens(*load_tokenizer("", folder.write("tokenizer.model", model)), flags);
  }
}

TEST(SpecialTokens, FollowFlagsForVocabAndMerges) {
  for (const Flags& flags : {Flags{"{}", {}, {}}, Flags{R"({"add_bos_token": true})", {1000}, {}},
                             Flags{R"({"add_bos_token": true, "add_eos_token": true})", {1000}, {1000}},
                             Flags{R"({"add_eos_token": true})", {}, {1000}}}) {
    const TemporaryFolder folder;
    folder.write("tokenizer_config.json", flags.config);
    const std::string vocab = folder.write("vocab.json", testing::read_file(kVectors + "gpt2/vocab.json")),
                      merges = folder.write("merges.txt", testing::read_file(kVectors + "gpt2/merges.txt"));
    expect_special_tokens(*load_tokenizer("bpe", "", vocab, merges), flags);
  }
}

// transformers 5 ignores the flags if there is a tokenizer.json.
TEST(SpecialTokens, FollowThePostProcessorOfAFile) {
  json tokenizer = vector_json("llama3");
  const auto with = [&](const char* config) { return load(tokenizer, {{"tokenizer_config.json", config}}); };
  for (const char* config :
       {"{}", R"({"add_bos_token": false, "tokenizer_class": "LlamaTokenizerFast"})", R"({"add_eos_token": true})"})
    expect_special_tokens(*with(config), {config, {1200}, {}});
  tokenizer["post_processor"] = nullptr;
  const char* config = R"({"add_bos_token": true, "bos_token": "<|begin_of_text|>"})";
  expect_special_tokens(*with(config), {config, {}, {}});
}

// Gemma's vocabulary has "</s>" as an HTML tag.
TEST(EndToken, IsNotGuessedFromOrdinaryPieces) {
  json tokenizer = vector_json("gpt2");
  tokenizer["added_tokens"] = json::array({added_token(1002, "<eos>", false, true)});
  tokenizer["post_processor"] = nullptr;
  tokenizer["model"]["vocab"]["</s>"] = 1001;
  EXPECT_EQ(load(tokenizer)->eod(), 1002);
  tokenizer["added_tokens"].push_back(added_token(1001, "</s>", false, false));
  EXPECT_EQ(load(tokenizer)->eod(), 1002) << "an added token that is not special";
  tokenizer["added_tokens"] = json::array();
  EXPECT_EQ(load(tokenizer)->eod(), std::nullopt);
  EXPECT_EQ(load(tokenizer, {{"tokenizer_config.json", R"({"eos_token": "</s>"})"}})->eod(), 1001);
}

TEST(EndToken, IsReadFromGenerationConfig) {
  json tokenizer = vector_json("gpt2");
  tokenizer["post_processor"] = nullptr;
  const auto with = [&](const char* generation, const char* config) {
    return load(tokenizer, {{"generation_config.json", generation}, {"config.json", config}});
  };
  const auto ids =
      with(R"({"bos_token_id": 5, "eos_token_id": [7, 8]})", R"({"eos_token_id": 9, "pad_token_id": 11})");
  EXPECT_EQ(ids->bos(), 5);
  EXPECT_EQ(ids->eos(), 7);
  EXPECT_EQ(ids->pad(), 11);
  EXPECT_EQ(with(R"({"eos_token_id": 99999999})", "{}")->eod(), 1000) << "an id without a token";
  EXPECT_EQ(with(R"({"eos_token_id": null})", R"({"eos_token_id": 3})")->eod(), 3);
  EXPECT_EQ(with("{", R"({"eos_token_id": NaN})")->eod(), 1000) << "files that are no JSON";
  const auto named = load(tokenizer, {{"generation_config.json", R"({"bos_token_id": 5, "eos_token_id": 7})"},
                                      {"tokenizer_config.json", R"({"eos_token": "!"})"}});
  EXPECT_EQ(named->eod(), 0) << "tokenizer_config.json decides";
  EXPECT_EQ(named->bos(), std::nullopt);
}

TEST(AddedTokens, DecodeAsTheirNormalizedText) {
  struct Case {
    const char *base, *content;
    bool special;
    json normalizer;  // null: as in the file
    const char *decoded, *skipped;
  };
  for (const Case& item :
       {Case{"qwen2", "\u1100\u1161", false, nullptr, "\uac00", "\uac00"},
        Case{"qwen2", "ze\u0301z", false, nullptr, "z\uFFFDz", "z\uFFFDz"},
        Case{"qwen2", "ze\u0301z", true, nullptr, "z\uFFFDz", "z\uFFFDz"},
        Case{"qwen2", "ABC", true, {{"type", "Lowercase"}}, "abc", "abc"},
        Case{"qwen2", "abc", true, {{"type", "Lowercase"}}, "abc", ""},
        Case{"llama2", "<x>", true, nullptr, "<x>", "<x>"}, Case{"llama2", "a b", false, nullptr, "a b", "a b"}}) {
    json tokenizer = vector_json(item.base);
    if (!item.normalizer.is_null()) tokenizer["normalizer"] = item.normalizer;
    tokenizer["added_tokens"].push_back(added_token(5000, item.content, true, item.special));
    const auto loaded = load(tokenizer);
    EXPECT_EQ(loaded->decode({5000}), item.decoded) << item.content;
    EXPECT_EQ(loaded->decode_skip_special({5000}), item.skipped) << item.content;
    EXPECT_EQ(loaded->token_to_id(item.content), 5000);
  }
}

// The pre-tokenizers of Falcon, and others whose steps follow ByteLevel. Those steps process GPT-2's alphabet, in
// which some bytes of other characters are digits.
TEST(StepsAfterByteLevel, EqualThePackage) {
  const json recorded = testing::read_json(METROPLEX_SOURCE_DIR "/tests/vectors/tokenizers/after_byte_level.json");
  json tokenizer = vector_json("gpt2");
  for (const auto& [name, steps] : recorded["sequences"].items()) {
    tokenizer["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
    const auto loaded = load(tokenizer);
    int cases = 0;
    for (const json& item : recorded["cases"]) {
      if (item["sequence"] != name) continue;
      EXPECT_EQ(loaded->encode(item["text"].get<std::string>()), item["ids"].get<Ids>()) << item.dump();
      ++cases;
    }
    EXPECT_EQ(cases, 6);
  }
}

// Classes that build their own steps, special tokens that only other files name, and flags of tokenizer_config.json,
// as AutoTokenizer of transformers 5.23.0 loads them.
TEST(TokenizerFolder, EqualsTransformers) {
  const json recorded = testing::read_json(METROPLEX_SOURCE_DIR "/tests/vectors/tokenizers/tokenizer_classes.json");
  EXPECT_EQ(recorded["cases"].size(), 15u);
  for (const json& item : recorded["cases"]) {
    SCOPED_TRACE(item["base"].dump() + item["files"].dump());
    std::vector<std::pair<std::string, std::string>> files;
    for (const auto& [name, content] : item["files"].items()) files.emplace_back(name, content.dump());
    const auto loaded = load(vector_json(item["base"]), files);
    EXPECT_EQ(loaded->vocab_size(), item["size"]);
    if (!item["eos"].is_null()) { EXPECT_EQ(loaded->eos(), item["eos"].get<int32_t>()); }
    for (size_t i = 0; i < item["texts"].size(); ++i) {
      const Ids ids = item["ids"][i].get<Ids>();
      EXPECT_EQ(loaded->encode(item["texts"][i].get<std::string>()), ids) << item["texts"][i];
      EXPECT_EQ(loaded->decode(ids), item["decoded"][i]);
    }
  }
}

TEST(TokenizerFolder, RefusesAddedIdsAfterAGap) {
  const std::string where = testing::catch_error([] {
    load(vector_json("gpt2"), {{"added_tokens.json", R"({"<new>": 1010})"}});
  });
  EXPECT_NE(where.find("added_tokens.json: '<new>' = 1010: ids of added tokens must follow the vocabulary"),
            std::string::npos)
      << where;
  EXPECT_NE(where.find("use the id 1004"), std::string::npos) << where;
}

TEST(TokenizerFolder, SentencePieceGetsTokensOfTheConfig) {
  const TemporaryFolder folder;
  folder.write("tokenizer_config.json", R"({"pad_token": "[PAD]", "eos_token": "</s>"})");
  const auto loaded = load_tokenizer(
      "", folder.write("tokenizer.model", testing::read_file(kVectors + "sentencepiece_bpe/tokenizer.model")));
  EXPECT_EQ(loaded->pad(), 1200);
  EXPECT_EQ(loaded->vocab_size(), 1201);
  EXPECT_EQ(loaded->encode("[PAD]"), Ids{1200});
}

}  // namespace
}  // namespace metroplex::text::special_tokens_test

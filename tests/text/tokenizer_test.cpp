// Cases that the vectors do not cover: other steps of a tokenizer.json, errors, invalid UTF-8, threads, training.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <thread>

#include <sentencepiece_processor.h>

#include "text/added_tokens.h"
#include "text/bpe_model.h"
#include "text/json_tokenizer.h"
#include "text/tokenizer.h"
#include "text/sentencepiece_train.h"
#include "text/support.h"
#include "text/utf8.h"

namespace metroplex::text::tokenizer_test {
namespace {

using testing::catch_error;
using testing::TemporaryFolder;
using Ids = std::vector<int32_t>;

constexpr const char* kBad = "\xEF\xBF\xBD";  // U+FFFD

// A tokenizer over the bytes of ASCII and a few merges, with additional sections of the file.
std::string small_json(const std::string& parts = "", const std::string& model_parts = "") {
  return R"({"added_tokens": [{"id": 9, "content": "<end>", "special": true, "normalized": false}],
    )" + parts +
         R"("model": {"type": "BPE", )" + model_parts +
         R"("vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4, "x": 5, " ": 6, "1": 7, "2": 8},
    "merges": ["a b", "ab c"]}})";
}

std::unique_ptr<Tokenizer> load_small(const std::string& parts = "", const std::string& model_parts = "") {
  return std::make_unique<JsonTokenizer>(parse_tokenizer_json(small_json(parts, model_parts), "small"),
                                         SpecialNames{}, InvalidUtf8::error);
}

TEST(Utf8, FindsTheFirstBadByte) {
  EXPECT_EQ(valid_utf8_prefix("plain and \xC3\xA9 and \xF0\x9F\x98\x80"), 21u);
  EXPECT_EQ(valid_utf8_prefix("ab\xFF"
                              "c"),
            2u);
  EXPECT_EQ(valid_utf8_prefix("ab\xC3"), 2u);
  EXPECT_EQ(valid_utf8_prefix("\xED\xA0\x80"), 0u) << "a surrogate";
  EXPECT_EQ(valid_utf8_prefix("\xC0\x80"), 0u) << "not the shortest form";
  EXPECT_EQ(valid_utf8_prefix("\xF4\x90\x80\x80"), 0u) << "above U+10FFFF";
}

// Table 3-11 of the Unicode standard.
TEST(Utf8, ReplacesEachMaximalBadPartByOneMark) {
  const std::string bad = kBad;
  EXPECT_EQ(replace_invalid_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), bad + bad + bad + bad + "A");
  EXPECT_EQ(replace_invalid_utf8("a\xED\xA0\x80z"), "a" + bad + bad + bad + "z");
}

TEST(Merges, GiveTheSameByScanningAndByHeap) {
  MergeTable table;
  uint32_t rank = 0;
  for (int32_t left = 0; left < 6; ++left) {
    for (int32_t right = 0; right < 6; ++right) {
      if ((left * 7 + right * 3) % 4 == 0) table.set(left, right, {(rank * 11) % 17 + rank, (left + right * 2) % 6});
      ++rank;
    }
  }
  // Repeats a part that merges with nothing on either side: short texts are scanned, long ones use the heap.
  MergeScratch scratch;
  uint64_t state = 1;
  for (int round = 0; round < 200; ++round) {
    std::vector<int32_t> part, longer;
    for (int i = 0; i < 20; ++i)
      part.push_back(static_cast<int32_t>((state = state * 6364136223846793005ull + 1) >> 40) % 6);
    part.push_back(100);
    for (int i = 0; i < 5; ++i) longer.insert(longer.end(), part.begin(), part.end());
    merge_all(table, part, scratch);
    merge_all(table, longer, scratch);
    std::vector<int32_t> expected;
    for (int i = 0; i < 5; ++i) expected.insert(expected.end(), part.begin(), part.end());
    ASSERT_EQ(longer, expected) << round;
  }
}

TEST(JsonTokenizerFile, DropsWhatItHasNoTokenForUnlessItNamesAnUnknownToken) {
  EXPECT_EQ(load_small()->encode("abcZZa"), (Ids{4, 0}));
  EXPECT_EQ(load_small("", R"("unk_token": "x", )")->encode("abcZZa"), (Ids{4, 5, 5, 0}));
  EXPECT_EQ(load_small("", R"("unk_token": "x", "fuse_unk": true, )")->encode("abcZZa"), (Ids{4, 5, 0}));
}

// U+00E9 is C3 A9, U+00EA C3 AA: one byte of the second has no token, so the whole character is unknown.
TEST(JsonTokenizerFile, ACharacterOfWhichAByteHasNoTokenIsUnknown) {
  const auto load = [](const std::string& more) {
    const std::string json = R"({"model": {"type": "BPE", "byte_fallback": true, "unk_token": "x", )" + more +
                             R"("vocab": {"a": 0, "x": 1, "<0xC3>": 2, "<0xA9>": 3}, "merges": []}})";
    return std::make_unique<JsonTokenizer>(parse_tokenizer_json(json, "small"), SpecialNames{}, InvalidUtf8::error);
  };
  EXPECT_EQ(load("")->encode("a\xC3\xA9"), (Ids{0, 2, 3}));
  EXPECT_EQ(load("")->encode("a\xC3\xAA"), (Ids{0, 1})) << "no half of it in bytes";
  // The orders of tokenizers 0.23.3: an unknown character is emitted at the next character that is not made of bytes.
  EXPECT_EQ(load("")->encode("\xC3\xAA\xC3\xAA\xC3\xA9"), (Ids{1, 2, 3, 1}));
  EXPECT_EQ(load("")->encode("\xC3\xAA\xC3\xA9"
                             "a"),
            (Ids{2, 3, 1, 0}));
  EXPECT_EQ(load(R"("fuse_unk": true, )")->encode("\xC3\xAA\xC3\xAA\xC3\xA9"), (Ids{2, 3, 1}));
}

TEST(JsonTokenizerFile, CutsDigitsAndSplitsAsItsBehaviorsSay) {
  const auto with = [](const std::string& pre_tokenizer, const std::string& text) {
    return load_small(R"("pre_tokenizer": )" + pre_tokenizer + ",")->encode(text);
  };
  const auto split = [](const std::string& behavior, const std::string& invert = "false") {
    return R"({"type": "Split", "pattern": {"String": "b"}, "behavior": ")" + behavior + R"(", "invert": )" + invert +
           "}";
  };
  EXPECT_EQ(with(split("Isolated"), "abc"), (Ids{0, 1, 2}));
  EXPECT_EQ(with(split("Removed"), "abc"), (Ids{0, 2}));
  EXPECT_EQ(with(split("Removed", "true"), "abc"), (Ids{1}));
  EXPECT_EQ(with(split("MergedWithPrevious"), "abc"), (Ids{3, 2}));
  EXPECT_EQ(with(split("MergedWithNext"), "abc"), (Ids{0, 1, 2}));
  EXPECT_EQ(with(split("Contiguous"), "abbc"), (Ids{0, 1, 1, 2}));
  EXPECT_EQ(with(R"({"type": "WhitespaceSplit"})", " ab c "), (Ids{3, 2}));
  EXPECT_EQ(with(R"({"type": "Digits", "individual_digits": true})", "ab12"), (Ids{3, 7, 8}));
}

TEST(JsonTokenizerFile, IntersectsAndNestsClassesOfItsRegularExpressions) {
  const auto cut = [](const std::string& regex, const std::string& text) {
    return load_small(R"("pre_tokenizer": {"type": "Split", "pattern": {"Regex": ")" + regex +
                      R"("}, "behavior": "Removed"},)")
        ->encode(text);
  };
  EXPECT_EQ(cut("[a-c&&[^b]]", "abc"), (Ids{1}));
  EXPECT_EQ(cut("[a[c]]", "abc"), (Ids{1}));
  EXPECT_EQ(cut("\\\\s", "a b"), (Ids{0, 1}));
  EXPECT_EQ(cut("\\\\h", "axb"), (Ids{5}));
}

TEST(JsonTokenizerFile, TakesCharactersNewerThanTheRegexLibraryForWhatTheyAre) {
  const std::string parts =
      R"("pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\p{L}"}, "behavior": "Removed"},)";
  // U+31350, a letter since Unicode 15, and U+1FAE8, a symbol since then.
  EXPECT_EQ(load_small(parts, R"("unk_token": "x", )")->encode("\xF0\xB1\x8D\x90"), Ids{});
  EXPECT_EQ(load_small(parts, R"("unk_token": "x", )")->encode("\xF0\x9F\xAB\xA8"), Ids{5});
}

TEST(JsonTokenizerFile, IsRefusedWithTheFileThePlaceAndTheRule) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "not JSON"},
      {"[]", "not a JSON object"},
      {small_json().substr(0, 200), "not JSON"},
      {std::string(200, '[') + std::string(200, ']'), "nested"},
      {R"({"model": {"type": "Unigram"}})", "use BPE"},
      {R"({"model": {"vocab": {"a": 4294967295}, "merges": []}})", "whole number"},
      {R"({"model": {"vocab": {"a": 0, "b": 0}, "merges": []}})", "same id"},
      {R"({"model": {"vocab": {"a": 0}, "merges": ["a z"]}})", "needs the token 'z'"},
      {R"({"model": {"vocab": {"a": 0}, "merges": [["a"]]}})", "not two tokens"},
      {R"({"model": {"vocab": {"a": 0}}})", "merges"},
      {R"({"model": {"vocab": {}, "merges": []}})", "vocabulary is empty"},
      {small_json("", R"("dropout": 0.1, )"), "dropout"},
      {small_json(R"("normalizer": {"type": "Nmt"},)"), "normalizer 'Nmt'"},
      {small_json(R"("pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated"},)"),
       "does not compile"},
      {small_json(
           R"("post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<q>"}}], "special_tokens": {}},)"),
       "special_tokens"},
  };
  for (const auto& [json, expected] : cases) {
    const std::string message = catch_error([&json = json] { parse_tokenizer_json(json, "path/of.json"); });
    EXPECT_NE(message.find(expected), std::string::npos) << message << "\nfor " << json.substr(0, 100);
    EXPECT_NE(message.find("path/of.json"), std::string::npos) << message;
  }
}

TEST(InvalidText, IsRefusedWithItsOffsetOrReplaced) {
  const std::string text =
      "abc\xFF"
      "abc";
  for (const std::string& folder : testing::vector_folders()) {
    const auto strict = load_tokenizer("", folder);
    const std::string message = catch_error([&] { strict->encode(text); });
    EXPECT_NE(message.find("byte 3"), std::string::npos) << folder << ": " << message;
    const auto lenient = load_tokenizer("", folder, "", "", InvalidUtf8::replace);
    // A character map may change a U+FFFD of the text, but not one that replaces a bad byte (vectors).
    if (strict->encode(kBad) == strict->encode("")) continue;
    EXPECT_EQ(lenient->encode(text), strict->encode(std::string("abc") + kBad + "abc")) << folder;
  }
  EXPECT_NE(catch_error([] { invalid_utf8_from_name("ignore"); }), "");
}

TEST(Bytes, TakeAnythingAndGiveItBack) {
  const auto tokenizer = load_tokenizer("bytes", "");
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  const Ids ids = tokenizer->encode(all);
  EXPECT_EQ(ids.size(), 256u);
  EXPECT_EQ(tokenizer->decode(ids), all);
  EXPECT_EQ(tokenizer->eod(), 256);
  EXPECT_EQ(tokenizer->vocab_size(), 257);
}

TEST(Numbers, AreTheirOwnIds) {
  const auto tokenizer = load_tokenizer("none", "50257");
  EXPECT_EQ(tokenizer->encode(" 1 2\n50256 "), (Ids{1, 2, 50256}));
  EXPECT_EQ(tokenizer->decode({3, 4}), "3 4");
  EXPECT_EQ(tokenizer->eod(), 50256);
  EXPECT_NE(catch_error([&] { tokenizer->encode("1 50257"); }).find("byte 2"), std::string::npos);
  EXPECT_NE(catch_error([&] { tokenizer->encode("one"); }), "");
}

TEST(Loading, NamesWhatIsMissingOrMisspelled) {
  const TemporaryFolder folder;
  EXPECT_NE(catch_error([] { load_tokenizer("sentencpiece", ""); }).find("did you mean sentencepiece"),
            std::string::npos);
  EXPECT_NE(catch_error([] { load_tokenizer("bpe", "/no/such.json"); }).find("does not exist"), std::string::npos);
  EXPECT_NE(catch_error([&] { load_tokenizer("", folder.path()); }).find("neither"), std::string::npos);
  EXPECT_NE(catch_error([&] { load_tokenizer("bpe", "", folder.write("v.json", "{}"), ""); }).find("merge file"),
            std::string::npos);
  const std::string merges = folder.write("merges.txt", "#version: 0.2\na b\na b c\n");
  const std::string vocab = folder.write("vocab.json", R"({"a": 0, "b": 1, "ab": 2})");
  EXPECT_NE(catch_error([&] { load_tokenizer("bpe", "", vocab, merges); }).find("line 3"), std::string::npos);
  EXPECT_NE(catch_error([] { load_tokenizer("none", "many"); }), "");
}

TEST(Threads, ShareOneTokenizer) {
  for (const std::string& folder : testing::vector_folders()) {
    const auto tokenizer = load_tokenizer("", folder, "", "", InvalidUtf8::replace);
    const auto cases = testing::read_json(folder + "/cases.json");
    std::vector<int> wrong(4);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (const auto& item : cases)
          wrong[t] += tokenizer->encode(testing::case_text(item)) != item["ids"].get<Ids>();
      });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(wrong, std::vector<int>(4)) << folder;
  }
}

std::string train_small(const std::string& type, int64_t vocab_size, int num_lines) {
  SentencePieceTraining training;
  training.model_type = type;
  training.vocab_size = vocab_size;
  int line = 0;
  const char* verbs[] = {"returns", "computes", "gathers", "reduces", "scatters"};
  const char* things[] = {"gradients", "weights", "tokens", "buffers", "stages", "microbatches", "groups"};
  return train_sentencepiece(training, [&]() -> std::optional<std::string> {
    if (line++ >= num_lines) return std::nullopt;
    return "the function " + std::to_string(line * 7919) + " " + verbs[line % 5] + "  the " + things[line % 7];
  });
}

TEST(Training, GivesAModelThatKeepsTextAsItIs) {
  const TemporaryFolder folder;
  for (const char* type : {"bpe", "unigram"}) {
    const std::string model = train_small(type, 300, 300);
    EXPECT_EQ(model, train_small(type, 300, 300)) << "the same text gives the same model";
    const auto tokenizer = load_tokenizer("sentencepiece", folder.write("small.model", model));
    EXPECT_EQ(tokenizer->vocab_size(), 300);
    EXPECT_EQ(tokenizer->eod(), 2);
    const std::string text = "the  function\n\treturns 42 \xC3\xA9\xF0\x9F\x98\x80  ";
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
    EXPECT_LT(tokenizer->encode("the function returns the value").size(), 25u) << "pieces were learnt";
  }
}

// Our implementation of a plain model against the library's.
TEST(SentencePiece, GivesTheSameIdsAsTheLibrary) {
  const TemporaryFolder folder;
  const std::string model = train_small("bpe", 300, 300);
  const auto ours = load_tokenizer("sentencepiece", folder.write("small.model", model));
  sentencepiece::SentencePieceProcessor library;
  ASSERT_TRUE(library.LoadFromSerializedProto(absl::string_view(model.data(), model.size())).ok());
  const char* parts[] = {"the ",     "function",     "  ",    "gathers", "ers", "42",    "\n",
                         "\xC3\xA9", "\xE2\x96\x81", "weigh", "ttt",     "<s>", "<0x41>"};
  uint64_t state = 5;
  for (int round = 0; round < 500; ++round) {
    std::string text;
    for (int i = 0; i < round % 40; ++i)
      text += parts[((state = state * 6364136223846793005ull + 1) >> 40) % std::size(parts)];
    std::vector<int> expected;
    ASSERT_TRUE(library.Encode(absl::string_view(text.data(), text.size()), &expected).ok());
    ASSERT_EQ(ours->encode(text), expected) << text;
  }
}

TEST(Training, RefusesWhatCannotBe) {
  EXPECT_NE(catch_error([] { train_small("bpe", 320, 0); }).find("no text"), std::string::npos);
  EXPECT_NE(catch_error([] { train_small("bpe", 100000, 20); }).find("smaller"), std::string::npos);
  EXPECT_NE(catch_error([] { train_small("bpe", 100, 20); }).find("261"), std::string::npos);
  EXPECT_NE(catch_error([] { train_small("wordpiece", 320, 20); }).find("unigram"), std::string::npos);
  const TemporaryFolder folder;
  const std::string bad = folder.write("bad.txt", "fine\nnot \xFF fine\n");
  EXPECT_NE(catch_error([&] { train_sentencepiece_on_files({}, {bad}); }).find("byte 9"), std::string::npos);
}

// Leftmost first, then the longest; adjacent tokens without text between them.
TEST(AddedTokens, TheLongestIsTakenAndNeighboursAreTwo) {
  AddedTokenFinder finder;
  for (const auto& [id, content] : {std::pair{7, "<a>"}, {8, "<a>b"}, {9, "a>b"}})
    finder.add({.id = id, .content = content}, content);
  const auto ids = [&](std::string_view text) {
    std::vector<AddedSplit> parts;
    finder.split(text, parts);
    std::vector<int32_t> found;
    for (const AddedSplit& part : parts) found.push_back(part.id);
    return found;
  };
  EXPECT_EQ(ids("<a>b"), (std::vector<int32_t>{8}));
  EXPECT_EQ(ids("<a>c"), (std::vector<int32_t>{7, -1}));
  EXPECT_EQ(ids("<a><a>b<a>"), (std::vector<int32_t>{7, 8, 7}));
  EXPECT_EQ(ids("x<aa>b"), (std::vector<int32_t>{-1, 9}));
}

// A single-word token does not match inside a word, at its beginning or at its end.
TEST(AddedTokens, ASingleWordIsNotFoundInsideAnother) {
  AddedTokenFinder finder;
  finder.add({.id = 7, .content = "ab", .single_word = true}, "ab");
  for (const auto& [text, found] : {std::pair{"ab", 1},
                                    {" ab ", 1},
                                    {"ab.", 1},
                                    {"abc", 0},
                                    {"cab", 0},
                                    {"ab_", 0},
                                    {"\xC3\xA9"
                                     "ab",
                                     0}}) {
    std::vector<AddedSplit> parts;
    finder.split(text, parts);
    EXPECT_EQ(std::count_if(parts.begin(), parts.end(), [](const AddedSplit& part) { return part.id == 7; }), found)
        << text;
  }
}

}  // namespace
}  // namespace metroplex::text::tokenizer_test

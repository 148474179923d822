// Our implementation of sentencepiece models: against plain references, and against the package on a long document.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <iterator>
#include <random>

#include "text/byte_trie.h"
#include "text/tokenizer.h"
#include "text/piece_model.h"
#include "text/support.h"
#include "text/text_cuts.h"

namespace metroplex::text::sentencepiece_test {
namespace {

using Ids = std::vector<int32_t>;

std::string random_text(std::mt19937& random, std::string_view alphabet, size_t size) {
  std::string out;
  while (out.size() < size) out += alphabet[random() % alphabet.size()];
  return out;
}

TEST(ByteTrie, FindsTheLongestBeginning) {
  std::mt19937 random(3);
  std::map<std::string, int32_t> values;
  for (int32_t i = 0; i < 3000; ++i) values.emplace(random_text(random, "abc\xC3\x01\xFF", 1 + random() % 7), i);
  const ByteTrie trie(ByteTrie::Entries(values.begin(), values.end()));
  for (int i = 0; i < 5000; ++i) {
    const std::string text = random_text(random, std::string_view("abc\xC3\x01\xFF\0", 7), random() % 10);
    ByteTrie::Match expected;
    for (size_t size = 1; size <= text.size(); ++size) {
      const auto it = values.find(text.substr(0, size));
      if (it != values.end()) expected = {size, it->second};
    }
    const auto found = trie.longest_prefix(text);
    ASSERT_EQ(found.size, expected.size);
    ASSERT_EQ(found.value, expected.value);
  }
  EXPECT_EQ(ByteTrie().longest_prefix(std::string_view("\0a", 2)).size, 0u);
  EXPECT_FALSE(ByteTrie().begins_with(0));
}

TEST(TextCuts, CutsOnlyWhereNoTokenLeadsOver) {
  SplitPoints cuts;
  cuts.join_all("ab\xE2\x96\x81");
  cuts.join_all("\xE6\x97\xA5\xE6\x9C\xAC");
  std::vector<std::string> parts;
  cuts.for_each_part("abba\xE2\x96\x81xb\xE2\x96\x81\xE6\x97\xA5\xE6\x9C\xAC",
                     [&](std::string_view part) { parts.emplace_back(part); });
  EXPECT_EQ(parts, (std::vector<std::string>{"ab", "b", "a", "\xE2\x96\x81", "x", "b\xE2\x96\x81",
                                             "\xE6\x97\xA5\xE6\x9C\xAC"}));
}

struct Model {
  std::vector<std::string> texts;
  SentencePieceFile file;

  void add(const std::string& text, float score, PieceType type = PieceType::normal) {
    texts.push_back(text);
    file.pieces.push_back({{}, score, type});
    for (size_t i = 0; i < texts.size(); ++i) file.pieces[i].text = texts[i];
  }
};

// All steps of the package: one float per position, the first of equal scores, reset to zero beyond 100,000.
Ids plain_unigram(const SentencePieceFile& file, const std::string& text) {
  std::map<std::string_view, int32_t> searched;
  float lowest = std::numeric_limits<float>::max();
  for (size_t id = 1; id < file.pieces.size(); ++id) {
    searched.emplace(file.pieces[id].text, static_cast<int32_t>(id));
    lowest = std::min(lowest, file.pieces[id].score);
  }
  std::vector<float> score(text.size() + 1);
  std::vector<std::pair<int, int32_t>> from(text.size() + 1, {-1, 0});
  for (size_t begin = 0; begin < text.size(); ++begin) {
    if (std::abs(score[begin]) > 100000.0f) {
      const float offset = score[begin];
      for (size_t i = begin; i <= text.size(); ++i) score[i] -= i == begin || from[i].first >= 0 ? offset : 0.0f;
    }
    const auto offer = [&](size_t end, int32_t id, float piece_score) {
      const float total = piece_score + score[begin];
      if (from[end].first >= 0 && !(total > score[end])) return;
      score[end] = total;
      from[end] = {static_cast<int>(begin), id};
    };
    for (size_t end = begin + 1; end <= std::min(text.size(), begin + 8); ++end) {
      const auto it = searched.find(std::string_view(text).substr(begin, end - begin));
      if (it != searched.end()) offer(end, it->second, file.pieces[static_cast<size_t>(it->second)].score);
      if (it == searched.end() && end == begin + 1) offer(end, 0, lowest - 10.0f);
    }
  }
  Ids ids;
  for (int end = static_cast<int>(text.size()); end > 0; end = from[static_cast<size_t>(end)].first) {
    ids.push_back(from[static_cast<size_t>(end)].second);
  }
  std::reverse(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end(), [](int32_t a, int32_t b) { return a == 0 && b == 0; }), ids.end());
  return ids;
}

// Few distinct scores produce ties and near-ties; large ones exceed 100,000 within a document.
TEST(Unigram, RemembersOnlyWhatRoundingCannotChange) {
  std::mt19937 random(17);
  for (const float scale : {1.0f, 40.0f, 3000.0f}) {
    Model model;
    model.add("<unk>", 0, PieceType::unknown);
    for (int i = 0; i < 120; ++i) {
      const std::string text = random_text(random, "abcd ", 1 + random() % 5);
      if (std::count(model.texts.begin(), model.texts.end(), text) > 0) continue;
      const float nearly = static_cast<float>(random() % 3) * 0.002f;
      model.add(text,
                -scale * (static_cast<float>(text.size()) * 0.7f + static_cast<float>(random() % 4) * 0.5f + nearly));
    }
    const auto ours = make_piece_model(model.file);
    for (int i = 0; i < 60; ++i) {
      const std::string text = random_text(random, i % 2 ? "abcd    xy" : "ab c", random() % 3000);
      ASSERT_EQ(ours->encode(text, nullptr), plain_unigram(model.file, text)) << scale << " '" << text << "'";
    }
  }
}

// The scores differ by 0.001. At a sum of -99,000, where floats are 1/128 apart, a + b and ab are equal and the first
// wins. Version 0.2.3 of the package resets a sum beyond 100,000 to zero and then resolves the difference again.
// Without the reset (0.1.97) the answer is ab for all but the first.
TEST(Unigram, SetsASumBeyond100000BackToZero) {
  Model model;
  model.add("<unk>", 0, PieceType::unknown);
  for (const auto& [text, score] : {std::pair("x", -1000.0f), {"a", -2.5f}, {"b", -2.5f}, {"ab", -5.001f}}) {
    model.add(text, score);
  }
  const auto ours = make_piece_model(model.file);
  for (const auto& [before, tail] :
       {std::pair<size_t, Ids>(0, {2, 3}), {99, {4}}, {101, {2, 3}}, {200, {4}}, {202, {2, 3}}, {250, {4}}}) {
    Ids expected(before, 1);
    expected.insert(expected.end(), tail.begin(), tail.end());
    EXPECT_EQ(ours->encode(std::string(before, 'x') + "ab", nullptr), expected) << before;
  }
}

// Joins the best pair, the leftmost of equals, until no two neighbors form a piece.
Ids plain_bpe(const SentencePieceFile& file, const std::string& text) {
  const auto find = [&](const std::string& spelling, bool frozen) {
    for (size_t id = 0; id < file.pieces.size(); ++id) {
      const PieceType wanted = frozen ? PieceType::user_defined : PieceType::normal;
      if (file.pieces[id].text == spelling && file.pieces[id].type == wanted) return static_cast<int32_t>(id);
    }
    return -1;
  };
  std::vector<std::pair<std::string, bool>> symbols;
  for (size_t at = 0; at < text.size(); at += symbols.back().first.size()) {
    symbols.emplace_back(text.substr(at, 1), false);
    for (size_t size = 1; size <= std::min<size_t>(6, text.size() - at); ++size) {
      if (find(text.substr(at, size), true) >= 0) symbols.back() = {text.substr(at, size), true};
    }
  }
  for (;;) {
    int best = -1;
    float best_score = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      if (symbols[i].second || symbols[i + 1].second) continue;
      const int32_t id = find(symbols[i].first + symbols[i + 1].first, false);
      if (id < 0 || (best >= 0 && file.pieces[static_cast<size_t>(id)].score <= best_score)) continue;
      best = static_cast<int>(i);
      best_score = file.pieces[static_cast<size_t>(id)].score;
    }
    if (best < 0) break;
    symbols[static_cast<size_t>(best)].first += symbols[static_cast<size_t>(best) + 1].first;
    symbols.erase(symbols.begin() + best + 1);
  }
  Ids ids;
  for (const auto& [spelling, frozen] : symbols) {
    const int32_t id = std::max(0, find(spelling, frozen));
    if (id != 0 || ids.empty() || ids.back() != 0) ids.push_back(id);
  }
  return ids;
}

TEST(SentencePieceBpe, JoinsAsThePlainLoopDoes) {
  std::mt19937 random(23);
  for (int round = 0; round < 12; ++round) {
    Model model;
    model.add("<unk>", 0, PieceType::unknown);
    model.add("d", 0, PieceType::control);  // a letter that no text piece can match
    model.add("ca", 0, PieceType::user_defined);
    model.add("cab", 0, PieceType::user_defined);
    for (const char* letter : {"a", "b"}) model.add(letter, -50);  // c and e are only parts of pieces
    for (int i = 0; i < 40; ++i) {
      const std::string text = random_text(random, "abcde", 2 + random() % 4);
      if (std::count(model.texts.begin(), model.texts.end(), text) > 0) continue;
      model.add(text, -static_cast<float>(random() % 12));
    }
    model.file.model_type = SentencePieceFile::kBpe;
    const auto ours = make_piece_model(model.file);
    for (int i = 0; i < 30; ++i) {
      const std::string text = random_text(random, "aabbcdexy", random() % 120);
      ASSERT_EQ(ours->encode(text, nullptr), plain_bpe(model.file, text)) << "'" << text << "'";
    }
  }
}

// The sum of a document's scores exceeds 100,000 several times. The expected values are the number of ids and their
// FNV-1a hash from version 0.2.3 of the package.
TEST(SentencePiece, GivesTheIdsOfThePackageForLongDocuments) {
  const char* words[] = {"return ", "the ",     "const",    "value", "-----", " function(", "std::",
                         "vector<", " aaaaaaa", "gradient", "s ",    "0x1f ", "\n  ",       "zzz"};
  struct Expected {
    const char* model;
    int num_words;
    size_t num_ids;
    uint64_t hash;
  };
  for (const Expected& expected : {Expected{"sentencepiece_unigram", 10000, 28637, 9862295566555666289u},
                                   Expected{"sentencepiece_unigram", 120000, 345870, 3903471938152809288u},
                                   Expected{"sentencepiece_unigram_rules", 10000, 26719, 3779497334270183755u},
                                   Expected{"sentencepiece_unigram_rules", 120000, 325293, 381725468960517783u}}) {
    std::string text;
    uint64_t state = 1;
    for (int i = 0; i < expected.num_words; ++i) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      text += words[(state >> 40) % std::size(words)];
    }
    const std::string folder = METROPLEX_SOURCE_DIR "/tests/vectors/tokenizers/";
    const Ids ids = load_tokenizer("sentencepiece", folder + expected.model)->encode(text);
    uint64_t hash = 0xcbf29ce484222325ull;
    for (const int32_t id : ids) hash = (hash ^ static_cast<uint64_t>(id)) * 0x100000001b3ull;
    EXPECT_EQ(ids.size(), expected.num_ids) << expected.model << " " << expected.num_words;
    EXPECT_EQ(hash, expected.hash) << expected.model << " " << expected.num_words;
  }
}

std::string field(char number, const std::string& bytes) {
  std::string out(1, static_cast<char>(number << 3 | 2));
  size_t size = bytes.size();
  for (; size >= 128; size >>= 7) out += static_cast<char>((size & 127) | 128);
  return out + static_cast<char>(size) + bytes;
}
std::string piece(const std::string& text, char type) { return field(1, field(1, text) + "\x18" + type); }

TEST(SentencePieceFileReading, RefusesPiecesThatDoNotFitTogether) {
  const auto error = [](const std::string& model) {
    return testing::catch_error([&] { read_sentencepiece_file(model, "small.model"); });
  };
  EXPECT_EQ(error(piece("<unk>", 2) + piece("a", 1)), "");
  EXPECT_NE(error(piece("a", 1)).find("unknown piece"), std::string::npos);
  EXPECT_NE(error(piece("<unk>", 2) + piece("<u>", 2) + piece("a", 1)).find("2 unknown"), std::string::npos);
  EXPECT_NE(error(piece("<unk>", 2) + piece("a", 1) + piece("a", 1)).find("'a' twice"), std::string::npos);
  EXPECT_NE(error(piece("<unk>", 2)).find("no pieces for segmenting"), std::string::npos);
  EXPECT_EQ(error(piece("<unk>", 2) + piece(std::string(4096, 'a'), 1)), "");
  EXPECT_NE(error(piece("<unk>", 2) + piece(std::string(4097, 'a'), 1)).find("of 4097 bytes"), std::string::npos);
  EXPECT_NE(error(piece("<unk>", 2) + piece("a", 1) + piece("<0x41>", 6)).find("byte_fallback"), std::string::npos);
  // trainer_spec.byte_fallback, field 35 of field 2: needs a piece for every byte, or the file is rejected.
  std::string model = field(2, std::string("\x98\x02\x01", 3)) + piece("<unk>", 2) + piece("a", 1);
  for (int byte = 0; byte < 256; ++byte) {
    if (byte == 255) {
      EXPECT_NE(error(model).find("has 255 of the 256 byte pieces"), std::string::npos) << error(model);
    }
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", byte);
    model += piece(text, 6);
  }
  EXPECT_EQ(error(model), "");
  const std::string nul = piece(std::string(1, '\0'), 1);
  EXPECT_EQ(error(model + nul), "");
  EXPECT_EQ(static_cast<int>(read_sentencepiece_file(model + nul, "small.model").pieces.back().type), 5) << "unused";
  EXPECT_NE(error(piece("<unk>", 2) + piece("a", 1) + nul).find("NUL"), std::string::npos);
  EXPECT_EQ(error(piece("<unk>", 2) + piece("a", 1) + piece(std::string(5000, 'b'), 4)), "");
}

// The models of Llama 2, Mistral and Phi-3 contain scores of -1e9. The ids are those of version 0.2.3 of the package.
TEST(SentencePieceFileReading, AcceptsAnyFiniteScore) {
  struct Case {
    const char* model;
    float score;  // of one piece
    const char* text;
    Ids ids;
  };
  const testing::TemporaryFolder folder;
  for (const Case& item : {Case{"sentencepiece_bpe", -40.0f, "xCHlowerCHst", {780, 301, 828, 269, 301, 265}},
                           Case{"sentencepiece_unigram",
                                -5.541518211364746f,
                                "x-lower-st",
                                {259, 484, 299, 352, 673, 385, 299, 264, 269}}}) {
    const std::string file = METROPLEX_SOURCE_DIR "/tests/vectors/tokenizers/" + std::string(item.model);
    const std::string model = testing::read_file(file + "/tokenizer.model");
    const auto score_field = [](float score) {  // field 2, four bytes
      return "\x15" + std::string(reinterpret_cast<const char*>(&score), 4);
    };
    const size_t at = model.find(score_field(item.score));
    ASSERT_NE(at, std::string::npos);
    const auto with_score = [&](float score) { return std::string(model).replace(at, 5, score_field(score)); };
    for (const float score : {-1e9f, 1e9f, -3e38f, 3e38f}) {
      const auto tokenizer = load_tokenizer("sentencepiece", folder.write("score.model", with_score(score)));
      EXPECT_EQ(tokenizer->encode(item.text), item.ids) << item.model << " " << score;
    }
    const std::string infinite = with_score(std::numeric_limits<float>::infinity());
    EXPECT_NE(testing::catch_error([&] { read_sentencepiece_file(infinite, "small.model"); }).find("finite"),
              std::string::npos);
  }
}

// trainer_spec.model_type, field 3, is 3 for words; U+2581 represents the space before a word.
TEST(SentencePieceWords, UnknownOnesSideBySideAreOne) {
  const testing::TemporaryFolder folder;
  const std::string space = "\xE2\x96\x81";
  const std::string model = piece("<unk>", 2) + piece(space + "a", 1) + piece(space + "b", 1) +
                            piece(space + "idle", 5) + field(2, std::string("\x18\x03", 2));
  const auto tokenizer = load_tokenizer("sentencepiece", folder.write("words.model", model));
  EXPECT_EQ(tokenizer->encode("a b a"), (Ids{1, 2, 1}));
  EXPECT_EQ(tokenizer->encode("a zz b"), (Ids{1, 0, 2}));
  EXPECT_EQ(tokenizer->encode("a zz yy b ww"), (Ids{1, 0, 2, 0}));
  EXPECT_EQ(tokenizer->encode("a zz idle yy b"), (Ids{1, 0, 2})) << "a piece of type unused is unknown too";
}

}  // namespace
}  // namespace metroplex::text::sentencepiece_test

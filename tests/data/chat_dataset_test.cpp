// Chats in samples: whole, separate from each other, with loss on the assistant's tokens.
#include "data/chat_dataset.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>

#include "data/build.h"
#include "data/preprocess.h"
#include "data/scratch.h"
#include "files/fault_file_system.h"
#include "files/memory_file_system.h"
#include "support/error_of.h"

namespace metroplex::data::chat_dataset_test {
namespace {

constexpr int64_t kLength = 24;

// Chat c contains 100 (c + 1), ...; every third token and the last one are learned.
void write_chats(files::FileSystem& disk, const std::string& prefix, const std::vector<int64_t>& lengths) {
  files::IndexedDatasetWriter tokens(disk, prefix, files::TokenType::i32);
  files::IndexedDatasetWriter marks(disk, prefix + kLossMaskSuffix, files::TokenType::u8);
  for (size_t c = 0; c < lengths.size(); ++c) {
    std::vector<int64_t> text, learned;
    for (int64_t i = 0; i < lengths[c]; ++i) {
      text.push_back(100 * (static_cast<int64_t>(c) + 1) + i);
      learned.push_back(i % 3 == 1 || i + 1 == lengths[c]);
    }
    tokens.add_sequence(std::span<const int64_t>(text));
    tokens.end_document();
    marks.add_sequence(std::span<const int64_t>(learned));
    marks.end_document();
  }
  marks.finalize();
  tokens.finalize();
}

std::vector<int64_t> some_lengths(int chats) {
  std::mt19937 random(5);
  std::vector<int64_t> lengths;
  for (int c = 0; c < chats; ++c) lengths.push_back(2 + static_cast<int64_t>(random() % kLength));
  return lengths;
}

class ChatSamples : public ::testing::Test {
 protected:
  void SetUp() override {
    lengths = some_lengths(60);
    files::PosixFileSystem posix;
    write_chats(posix, scratch / "chats", lengths);
    config.data_path = {scratch / "chats"};
    config.split = "1,0,0";
    config.reset_position_ids = config.reset_attention_mask = true;
  }
  std::shared_ptr<const Dataset> train() const {
    files::PosixFileSystem posix;
    return build_datasets(config, options, posix).train;
  }
  std::string refusal() const {
    return test::catch_error([&] { train(); });
  }

  Scratch scratch;
  std::vector<int64_t> lengths;
  config::Data config;
  BuildOptions options{kLength, 1234, {-1, 0, 0}, -1, 0};
};

// Whole chats have no index of text samples, whose memory a dry run would report.
TEST_F(ChatSamples, HaveNoOrderProblemOfTexts) {
  files::PosixFileSystem posix;
  options.sizes = {int64_t{1} << 45, 0, 0};
  EXPECT_EQ(order_problem(config, options, posix), "");
}

TEST_F(ChatSamples, HoldEveryChatOnceAndWhole) {
  const auto dataset = train();
  std::map<int64_t, int> seen;
  int64_t used = 0;
  for (int64_t i = 0; i < dataset->size(); ++i) {
    Sample sample;
    dataset->get(i, sample);
    ASSERT_EQ(sample.tokens.size(), static_cast<size_t>(kLength));
    for (int64_t at = 0; at < kLength;) {
      if (sample.tokens[at] == 0) {  // the rest
        for (int64_t position = 0, begin = at; at < kLength; ++at, ++position) {
          EXPECT_EQ(sample.tokens[at] + sample.labels[at], 0);
          EXPECT_EQ(sample.loss_mask[at], 0.0f);
          EXPECT_EQ(sample.position_ids[at], position);
          EXPECT_TRUE(begin == 0 || sample.document_ids[at] == sample.document_ids[begin - 1] + 1);
        }
        break;
      }
      const int64_t chat = sample.tokens[at] / 100 - 1, length = lengths[static_cast<size_t>(chat)],
                    document = sample.document_ids[at];
      ++seen[chat];
      ASSERT_LE(at + length - 1, kLength);
      EXPECT_TRUE(at == 0 || sample.document_ids[at - 1] == document - 1);
      for (int64_t k = 0; k + 1 < length; ++k, ++at, ++used) {
        EXPECT_EQ(sample.tokens[at], 100 * (chat + 1) + k);
        EXPECT_EQ(sample.labels[at], 100 * (chat + 1) + k + 1);
        EXPECT_EQ(sample.position_ids[at], k);
        EXPECT_EQ(sample.document_ids[at], document);
        EXPECT_EQ(sample.loss_mask[at], (k + 1) % 3 == 1 || k + 2 == length ? 1.0f : 0.0f) << k << " of " << length;
      }
    }
  }
  EXPECT_EQ(seen.size(), lengths.size());
  for (const auto& [chat, times] : seen) EXPECT_EQ(times, 1) << chat;
  // Lower bound for chats of 1 to 24 positions: one sample per chat would fill half.
  EXPECT_GT(static_cast<double>(used) / static_cast<double>(dataset->size() * kLength), 0.9);
}

TEST_F(ChatSamples, AreTheSameWhateverTheNumberAskedFor) {
  const auto epoch = train();
  options.sizes = {5 * epoch->size(), 0, 0};
  const auto more = train();
  ASSERT_GE(more->size(), 5 * epoch->size());
  std::map<int64_t, int> times;
  Sample a, b;
  int64_t differ = 0;
  for (int64_t i = 0; i < epoch->size(); ++i) {
    epoch->get(i, a);
    more->get(i, b);
    EXPECT_EQ(a.tokens, b.tokens) << i;
    more->get(epoch->size() + i, b);
    differ += a.tokens != b.tokens;
  }
  EXPECT_GT(differ, 0);  // another order in the second epoch
  options.seed = 99;
  const auto other = train();
  int64_t moved = 0;
  for (int64_t i = 0; i < std::min(epoch->size(), other->size()); ++i) {
    epoch->get(i, a);
    other->get(i, b);
    moved += a.tokens != b.tokens;
  }
  EXPECT_GT(moved, epoch->size() / 2);
}

TEST_F(ChatSamples, AreCountedWithWhatIsLearnedOfThem) {
  files::PosixFileSystem posix;
  int64_t learned = 0;
  for (const int64_t length : lengths)
    for (int64_t i = 0; i < length; ++i) learned += i % 3 == 1 || i + 1 == length;
  const SourceTokens counted = training_tokens(config, posix, {.counts_learned = true}).at(0);
  EXPECT_TRUE(counted.chats);
  EXPECT_EQ(counted.learned, learned);
  posix.remove_tree(scratch / "chats_loss_mask.idx");
  EXPECT_FALSE(training_tokens(config, posix).at(0).chats);
}

TEST_F(ChatSamples, FormAnEpochOfSamples) {
  files::PosixFileSystem posix;
  const int64_t epoch = train()->size();
  const TokenCountOptions counting{kLength, options.seed};
  const SourceTokens source = training_tokens(config, posix, counting).at(0);
  EXPECT_EQ(source.epochs(static_cast<double>(epoch)), 1.0);
  EXPECT_EQ(samples_of_epochs(config, posix, 1, counting), epoch);
  EXPECT_EQ(samples_of_epochs(config, posix, 2.5, counting), static_cast<int64_t>(2.5 * static_cast<double>(epoch)));
  write_chats(posix, scratch / "long", std::vector<int64_t>(12, kLength));
  config.data_path = {scratch / "long"};
  EXPECT_EQ(training_tokens(config, posix, counting).at(0).epochs(12), 1.0) << "a sample for each of 12 chats";
  EXPECT_EQ(samples_of_epochs(config, posix, 3, counting), 36);
}

TEST_F(ChatSamples, AFillerHasNoLoss) {
  Sample sample;
  train()->get(-1, sample);
  EXPECT_EQ(std::accumulate(sample.loss_mask.begin(), sample.loss_mask.end(), 0.0f), 0.0f);
  EXPECT_EQ(sample.index, -1);
}

TEST_F(ChatSamples, WhatDoesNotFitIsRefusedWithTheWayOut) {
  config.reset_attention_mask = false;
  EXPECT_NE(refusal().find("data.reset_attention_mask = true"), std::string::npos) << refusal();
  config.reset_attention_mask = true;
  files::PosixFileSystem posix;
  options.sequence_length = 20;
  const auto longer = std::count_if(lengths.begin(), lengths.end(), [](int64_t l) { return l > 21; });
  ASSERT_GT(longer, 0);
  const std::string too_long = refusal();
  EXPECT_NE(too_long.find(std::to_string(longer) + " of 60 chats"), std::string::npos) << too_long;
  EXPECT_NE(too_long.find("--seq-length 20 --long cut"), std::string::npos) << too_long;
  options.sequence_length = kLength;
  options.vocab_size = 300;
  EXPECT_NE(test::catch_error([&] {
              const auto dataset = train();
              Sample sample;
              for (int64_t i = 0; i < dataset->size(); ++i) dataset->get(i, sample);
            }).find("outside the vocabulary of 300"),
            std::string::npos);
  options.vocab_size = 0;
  config.data_path = {scratch / "chats_loss_mask"};
  EXPECT_NE(refusal().find("is the loss mask of chats"), std::string::npos) << refusal();
  EXPECT_NE(refusal().find("use the dataset '" + (scratch / "chats") + "'"), std::string::npos) << refusal();
  EXPECT_NE(training_tokens(config, posix).at(0).problem.find("is the loss mask of chats"), std::string::npos);
  config.data_path = {scratch / "chats"};
  // An invalid mark of the second token of the second chat.
  std::string marks = posix.read(scratch / "chats_loss_mask.bin");
  marks[static_cast<size_t>(lengths[0]) + 1] = 2;
  posix.replace_file(scratch / "chats_loss_mask.bin", marks);
  const std::string mark = test::catch_error([&] {
    const auto dataset = train();
    Sample sample;
    for (int64_t i = 0; i < dataset->size(); ++i) dataset->get(i, sample);
  });
  EXPECT_NE(mark.find("chats_loss_mask.bin': token 1 of chat 1 has the mark 2"), std::string::npos) << mark;
  // Marks of other chats.
  write_chats(posix, scratch / "other", some_lengths(59));
  posix.replace_file(scratch / "chats_loss_mask.idx", posix.read(scratch / "other_loss_mask.idx"));
  posix.replace_file(scratch / "chats_loss_mask.bin", posix.read(scratch / "other_loss_mask.bin"));
  EXPECT_NE(refusal().find("marks of 59"), std::string::npos) << refusal();
}

// A line is a chat of its letters; capitals are learned. Slashes separate sequences.
Encoder letters(int64_t longest = 0, bool drops = false) {
  Encoder encoder;
  encoder.encode_chat = [](std::string_view line) {
    MPX_CHECK(line.find('!') == std::string_view::npos, "text", "no shouting");
    std::vector<MarkedTokens> made(1);
    for (const char c : line) {
      if (c == '/') {
        made.emplace_back();
        continue;
      }
      made.back().tokens.push_back(c);
      made.back().learned.push_back(c >= 'A' && c <= 'Z');
    }
    return made;
  };
  encoder.vocab_size = 256;
  encoder.longest_chat = longest;
  encoder.drops_long_chats = drops;
  encoder.description = "letters";
  return encoder;
}

void write_file(files::FileSystem& disk, const std::string& path, const std::string& text) {
  disk.replace_file(path, text);
}

PreprocessOptions letter_options(const std::string& prefix, int64_t part_bytes = 0) {
  PreprocessOptions options;
  options.inputs = {"/in.jsonl"};
  options.output_prefix = prefix;
  options.part_bytes = part_bytes;
  return options;
}

std::vector<std::string> read_texts(files::FileSystem& disk, const std::string& prefix) {
  const ChatSource source(disk, prefix);
  std::vector<std::string> out;
  for (int64_t i = 0; i < source.num_sequences(); ++i) {
    std::vector<int64_t> text(static_cast<size_t>(source.length(i))), marks(text.size());
    source.read(i, 0, source.length(i), text.data());
    source.read_learned(i, 0, source.length(i), marks.data());
    std::string& shown = out.emplace_back();
    for (size_t k = 0; k < text.size(); ++k) {
      shown += static_cast<char>(text[k]);
      EXPECT_EQ(marks[k] != 0, shown.back() >= 'A' && shown.back() <= 'Z') << shown;
    }
  }
  return out;
}

TEST(ChatPreprocess, WritesTokensAndWhichAreLearned) {
  files::MemoryFileSystem disk;
  write_file(disk, "/in.jsonl", "abCD\nnone\nXy\nlongCOMESlater\nabcdefgH\n");
  EXPECT_EQ(preprocess(disk, letter_options("/all"), letters()).empty_documents,
            2);  // the first token is never predicted
  EXPECT_EQ(read_texts(disk, "/all"), (std::vector<std::string>{"abCD", "longCOMESlater", "abcdefgH"}));
  const PreprocessProgress cut = preprocess(disk, letter_options("/cut"), letters(6));
  EXPECT_EQ(cut.long_chats, 2);
  EXPECT_EQ(cut.empty_documents, 3);  // one has no learned token within 6 tokens
  EXPECT_EQ(read_texts(disk, "/cut"), (std::vector<std::string>{"abCD", "longCO"}));
  const PreprocessProgress dropped = preprocess(disk, letter_options("/drop"), letters(6, true));
  EXPECT_EQ(dropped.long_chats, 2);
  EXPECT_EQ(read_texts(disk, "/drop"), (std::vector<std::string>{"abCD"}));
  merge_datasets(disk, {"/all", "/drop"}, "/both");
  EXPECT_EQ(read_texts(disk, "/both"), (std::vector<std::string>{"abCD", "longCOMESlater", "abcdefgH", "abCD"}));
  // No sequence left.
  const auto refused = [&](int64_t longest, bool drops, const PreprocessOptions& options) {
    return test::catch_error([&] { preprocess(disk, options, letters(longest, drops)); });
  };
  const std::string none = refused(3, true, letter_options("/none"));
  EXPECT_NE(
      none.find("none of the 5 chats is left; 4 with more than 3 tokens were left out: pass a larger --seq-length"),
      std::string::npos)
      << none;
  EXPECT_EQ(none.find("in 5 no token"), std::string::npos);
  const std::string cut_off = refused(2, false, letter_options("/none"));
  EXPECT_NE(cut_off.find("4 with more than 2 tokens were cut"), std::string::npos) << cut_off;
  for (const char* option : {"--json-key", "--split-documents"}) {
    PreprocessOptions of_text = letter_options("/none");
    if (option == std::string("--json-key")) of_text.json_key = "body";
    else of_text.split_documents = true;
    EXPECT_NE(refused(0, false, of_text).find(std::string(option) + ": applies to text"), std::string::npos)
        << option;
  }
  write_file(disk, "/in.jsonl", "abC\nno!\n");
  const std::string error = test::catch_error([&] { preprocess(disk, letter_options("/bad"), letters()); });
  EXPECT_NE(error.find("'/in.jsonl' line 2: no shouting"), std::string::npos) << error;
  EXPECT_FALSE(disk.exists("/bad.idx"));
}

TEST(ChatPreprocess, ChatMayBeSeveralSequences) {
  files::MemoryFileSystem disk;
  write_file(disk, "/in.jsonl", "aB/aBcD/ab\nnone/none\naB\nlongCOMES/longCOMESlater\n");
  Encoder encoder = letters(9, true);
  encoder.chat_sequences = "sequences";
  const PreprocessProgress done = preprocess(disk, letter_options("/out", 10), encoder);
  EXPECT_EQ(read_texts(disk, "/out"), (std::vector<std::string>{"aB", "aBcD", "aB", "longCOMES"}));
  EXPECT_EQ(done.documents, 4);
  EXPECT_EQ(done.chats, 3);
  EXPECT_EQ(done.long_chats, 1);
  EXPECT_EQ(done.empty_documents, 4);  // "ab", "none" twice, and the one that is too long
  EXPECT_EQ(done.tokens, 17);
  EXPECT_EQ(done.learned, 9);
  write_file(disk, "/in.jsonl", "none/none\nlongCOMESlater/ab\n");
  const std::string none = test::catch_error([&] { preprocess(disk, letter_options("/none"), encoder); });
  EXPECT_NE(none.find("none of the 4 sequences is left; 1 with more than 9 tokens were left out"), std::string::npos)
      << none;
  EXPECT_NE(none.find("in 3 no token is learned"), std::string::npos) << none;
}

TEST(ChatPreprocess, TextInThePlaceOfChatsLeavesNoMarksBehind) {
  files::MemoryFileSystem disk;
  write_file(disk, "/in.jsonl", "{\"text\": \"aB\"}\n");
  preprocess(disk, letter_options("/out"), letters());
  EXPECT_TRUE(holds_chats(disk, "/out"));
  Encoder text = letters();
  text.encode_chat = nullptr;
  text.encode = [](std::string_view line) { return std::vector<int32_t>(line.begin(), line.end()); };
  PreprocessOptions options = letter_options("/out");
  EXPECT_NE(test::catch_error([&] { preprocess(disk, options, text); }).find("--overwrite"), std::string::npos);
  options.overwrite = true;
  preprocess(disk, options, text);
  EXPECT_FALSE(holds_chats(disk, "/out"));
  EXPECT_NE(test::catch_error([&] { merge_datasets(disk, {"/out", "/missing"}, "/m"); }), "");
}

TEST(ChatPreprocess, StoppedAtAnyPartItGoesOnToTheSameBytes) {
  std::string input;
  std::mt19937 random(3);
  for (int line = 0; line < 300; ++line) {
    for (uint32_t i = 0; i <= random() % 20; ++i)
      input += static_cast<char>((random() % 2 ? 'a' : 'A') + random() % 26);
    input += line == 250 ? "!\n" : "\n";
  }
  files::MemoryFileSystem disk;
  write_file(disk, "/in.jsonl", input);
  EXPECT_NE(test::catch_error([&] { preprocess(disk, letter_options("/out", 200), letters()); }).find("line 251"),
            std::string::npos);
  EXPECT_FALSE(disk.exists("/out.idx"));
  Encoder mended = letters();
  const auto strict = mended.encode_chat;
  int64_t calls = 0;
  mended.encode_chat = [&](std::string_view line) {
    ++calls;
    return strict(line.substr(0, line.find('!')));
  };
  const PreprocessProgress resumed = preprocess(disk, letter_options("/out", 200), mended);
  EXPECT_GT(resumed.bytes_resumed, 0);
  EXPECT_LT(calls, 100);
  const PreprocessProgress whole = preprocess(disk, letter_options("/whole", 200), mended);
  EXPECT_EQ(whole.learned, resumed.learned);
  EXPECT_EQ(whole.chats, resumed.chats);
  EXPECT_EQ(whole.chats, whole.documents);
  EXPECT_EQ(whole.tokens, resumed.tokens);
  for (const char* end : {".bin", ".idx", "_loss_mask.bin", "_loss_mask.idx"})
    EXPECT_EQ(disk.read(std::string("/out") + end), disk.read(std::string("/whole") + end)) << end;
}

}  // namespace
}  // namespace metroplex::data::chat_dataset_test

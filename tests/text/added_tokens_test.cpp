// Added tokens in files next to a tokenizer, and control pieces in chats. Expected ids are those of transformers
// 5.24.0.
#include <gtest/gtest.h>

#include "text/chat_template.h"
#include "text/end_of_turn.h"
#include "text/support.h"
#include "text/tokenizer.h"

namespace metroplex::text::added_tokens_test {
namespace {

using testing::catch_error;
using testing::TemporaryFolder;
using Ids = std::vector<int32_t>;

const std::string kVectors = METROPLEX_SOURCE_DIR "/tests/vectors/tokenizers/";
constexpr const char* kText = "<|im_start|>user\nhi there<|im_end|>\n <|im_end|> x";

constexpr const char* kDecoder = R"({"bos_token": "<s>", "eos_token": "<|im_end|>", "add_bos_token": true,
  "added_tokens_decoder": {"1201": {"content": "<|im_start|>", "special": true},
    "1200": {"content": "<|im_end|>", "special": true}, "1": {"content": "<s>", "special": true}}})";

// A tokenizer.model or tokenizer.json in its own folder, with other files next to it.
class Folder {
 public:
  Folder(const std::string& vector, const char* name,
         const std::vector<std::pair<const char*, std::string>>& more = {}) {
    for (const auto& [file, text] : more) folder_.write(file, text);
    path_ = folder_.write(name, testing::read_file(kVectors + vector + "/" + name));
  }
  std::unique_ptr<Tokenizer> load() const { return load_tokenizer("", path_); }

 private:
  TemporaryFolder folder_;
  std::string path_;
};

TEST(SentencePieceChats, FindControlPieces) {
  const auto tokenizer = load_tokenizer("", kVectors + "sentencepiece_bpe");
  const LocatedIds chat = tokenizer->encode_chat("<s>[INST] hi [/INST] yo </s><s>x");
  EXPECT_EQ(chat.ids, (Ids{1, 4, 459, 1004, 999, 1075, 1013, 523, 834, 1074, 752, 1007, 999, 2, 1, 1045}));
  EXPECT_EQ(chat.ranges[13].begin, 24u);
  EXPECT_EQ(chat.ranges[13].end, 28u);
  EXPECT_EQ(chat.ranges[15].begin, 31u);
  EXPECT_EQ(tokenizer->encode_chat("a<unk>b").ids, (Ids{281, 0, 1029}));
  EXPECT_EQ(tokenizer->encode("<s>"), (Ids{334, 1006, 1035})) << "text that is no chat";
  EXPECT_TRUE(tokenizer->is_special(2));
  EXPECT_FALSE(tokenizer->is_special(459));
}

TEST(SentencePieceChats, LearnTheEndOfATurn) {
  const auto tokenizer = load_tokenizer("", kVectors + "sentencepiece_bpe");
  const ChatTemplate chat_template(
      "{% for m in messages %}<s>{{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<s>{% endif %}",
      "template", {});
  const ChatTokens tokens = chat_tokens(
      *tokenizer, chat_template.learned_texts(
                      parse_chat(R"([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}])"),
                      Learned::all)[0]);
  ASSERT_EQ(tokens.ids.back(), 2);
  EXPECT_EQ(tokens.learned.back(), 1);
  EXPECT_EQ(end_of_turn(chat_template, *tokenizer), 2);
}

TEST(AddedTokens, JoinASentencePieceModel) {
  const Ids expected = {1201, 348, 269, 15, 1016, 1004, 278, 747, 1200, 15, 999, 1200, 780};
  const char* names = R"({"bos_token": "<s>", "eos_token": "<|im_end|>", "add_bos_token": true,
    "additional_special_tokens": ["<|im_start|>"]})";
  const char* added = R"({"<|im_start|>": 1201, "<|im_end|>": 1200})";
  for (const auto& files : {std::vector<std::pair<const char*, std::string>>{{"tokenizer_config.json", kDecoder}},
                            {{"tokenizer_config.json", names}, {"added_tokens.json", added}}}) {
    const auto tokenizer = Folder("sentencepiece_bpe", "tokenizer.model", files).load();
    EXPECT_EQ(tokenizer->encode(kText), expected);
    EXPECT_EQ(tokenizer->encode_with_ranges(kText).ids, expected);
    EXPECT_EQ(tokenizer->encode_with_special("x"), (Ids{1, 780}));
    EXPECT_EQ(tokenizer->vocab_size(), 1202);
    EXPECT_EQ(tokenizer->eos(), 1200);
    EXPECT_EQ(tokenizer->token_to_id("<|im_start|>"), 1201);
    EXPECT_EQ(tokenizer->decode(expected), kText);
    EXPECT_EQ(tokenizer->decode_skip_special(expected), "user\nhi there\n  x");
  }
}

TEST(AddedTokens, JoinAVocabulary) {
  const char* decoder = R"({"eos_token": "<|im_end|>", "added_tokens_decoder": {"1000": {"content": "<|endoftext|>",
    "special": true}, "1001": {"content": "<|im_start|>", "special": true}, "1002": {"content": "<|im_end|>",
    "special": true}}})";
  const TemporaryFolder folder;
  folder.write("tokenizer_config.json", decoder);
  for (const char* name : {"vocab.json", "merges.txt"})
    folder.write(name, testing::read_file(kVectors + "gpt2/" + name));
  const auto tokenizer = load_tokenizer("", folder.path());
  EXPECT_EQ(tokenizer->encode(kText), (Ids{1001, 84, 82, 279, 198, 71, 72, 399, 275, 1002, 265, 1002, 220, 87}));
  EXPECT_EQ(tokenizer->eos(), 1002);
  EXPECT_EQ(tokenizer->vocab_size(), 1003);
}

TEST(AddedTokens, JoinATokenizerFile) {
  std::string config = kDecoder;
  for (const auto& [from, to] : {std::pair{"1201", "1203"}, {"1200", "1202"}})
    config.replace(config.find(from), 4, to);
  const auto tokenizer = Folder("llama2", "tokenizer.json", {{"tokenizer_config.json", config}}).load();
  EXPECT_EQ(tokenizer->encode_with_special(kText),
            (Ids{1, 1203, 1006, 404, 270, 13, 1025, 1014, 286, 931, 1202, 1006, 13, 1006, 1202, 259, 1054}));
  EXPECT_EQ(tokenizer->eos(), 1202);
}

TEST(AddedTokens, MustNotTakeTheIdOfAnother) {
  const std::string config = R"({"added_tokens_decoder": {"5": {"content": "<new>"}}})";
  for (const auto& [vector, name] :
       {std::pair{"sentencepiece_bpe", "tokenizer.model"}, {"llama2", "tokenizer.json"}}) {
    const Folder folder(vector, name, {{"tokenizer_config.json", config}});
    const std::string error = catch_error([&] { folder.load(); });
    EXPECT_NE(error.find("'<new>' = 5: this id belongs to"), std::string::npos) << error;
    EXPECT_NE(error.find("added_tokens_decoder"), std::string::npos) << error;
  }
  const Folder folder("llama2", "tokenizer.json",
                      {{"tokenizer_config.json", R"({"added_tokens_decoder": {"x": {}}})"}});
  EXPECT_NE(catch_error([&] { folder.load(); }).find("'x' is not an id"), std::string::npos);
}

}  // namespace
}  // namespace metroplex::text::added_tokens_test

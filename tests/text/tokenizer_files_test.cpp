// A folder with the files of a tokenizer gives the same tokenizer.
#include "text/tokenizer_files.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "files/checksum.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "text/support.h"

namespace metroplex::text::tokenizer_files_test {
namespace {

using testing::TemporaryFolder;

const std::string kVectors = "tests/vectors/tokenizers/";

struct Source {
  std::string type, model, vocab_file, merge_file;
};

TokenizerFiles read(const Source& source) {
  return read_tokenizer_files(source.type, source.model, source.vocab_file, source.merge_file);
}

// Writes the files under their names and loads them.
void expect_the_same_tokenizer(const Source& source) {
  SCOPED_TRACE(source.model + source.vocab_file);
  const TokenizerFiles files = read(source);
  const TemporaryFolder folder;
  std::vector<std::string> names;
  for (const auto& [name, bytes] : files.files) {
    folder.write(name, bytes);
    names.push_back(name);
  }
  const TokenizerPaths paths = tokenizer_paths(folder.path(), names);
  const auto first = load_tokenizer(source.type, source.model, source.vocab_file, source.merge_file);
  const auto second = load_tokenizer(files.type, paths.model, paths.vocab_file, paths.merge_file);
  EXPECT_EQ(second->name(), first->name());
  EXPECT_EQ(second->vocab_size(), first->vocab_size());
  EXPECT_EQ(second->eod(), first->eod());
  for (const char* text : {"Hello  world, 12 apples\n", "na\u00efve caf\u00e9", " leading"}) {
    EXPECT_EQ(second->encode(text), first->encode(text)) << text;
  }
  EXPECT_EQ(read({files.type, paths.model, paths.vocab_file, paths.merge_file}).checksum, files.checksum);
}

TEST(TokenizerFiles, OfEveryKindLoadAgainFromTheirOwnFolder) {
  int seen = 0;
  for (const std::string& folder : testing::vector_folders()) {
    const std::string path = folder.find('/') == std::string::npos ? kVectors + folder : folder;
    for (const char* name : {"tokenizer.model", "tokenizer.json"}) {
      if (!testing::exists(path + "/" + name)) continue;
      expect_the_same_tokenizer({"", path + "/" + name, "", ""});
      ++seen;
    }
    if (testing::exists(path + "/vocab.json")) {
      expect_the_same_tokenizer({"bpe", "", path + "/vocab.json", path + "/merges.txt"});
      ++seen;
    }
  }
  EXPECT_GE(seen, 3);
}

TEST(TokenizerFiles, CarryTemplatesAndAddedTokens) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.path() + "/additional_chat_templates");
  folder.write("tokenizer.json", testing::read_file(kVectors + "llama2/tokenizer.json"));
  folder.write("chat_template.jinja", "default");
  folder.write("additional_chat_templates/tool_use.jinja", "with tools");
  folder.write("added_tokens.json", R"({"<new>": 1202})");
  const TemporaryFolder copy;
  for (const auto& [name, bytes] : read({"", folder.path(), "", ""}).files) copy.write(name, bytes);
  EXPECT_EQ(find_chat_template(copy.path())->source(), "defaultwith tools");
  EXPECT_EQ(load_tokenizer("", copy.path())->token_to_id("<new>"), 1202);
  EXPECT_EQ(read({"", copy.path(), "", ""}).files.size(), 4u) << "a copy of a copy";
}

// config.json is not carried, although the class depends on its model_type.
TEST(TokenizerFiles, CarryTheTokenizerClass) {
  for (const char* model : {"mistral", "llama", "qwen2"}) {
    SCOPED_TRACE(model);
    const TemporaryFolder folder, copy;
    folder.write("tokenizer.json", testing::read_file(kVectors + "llama2/tokenizer.json"));
    folder.write("config.json", std::string(R"({"model_type": ")") + model + "\"}");
    folder.write("tokenizer_config.json", R"({"tokenizer_class": "LlamaTokenizer", "eos_token": "</s>"})");
    for (const auto& [name, bytes] : read({"", folder.path(), "", ""}).files) copy.write(name, bytes);
    EXPECT_EQ(load_tokenizer("", copy.path())->encode("</s> y"), load_tokenizer("", folder.path())->encode("</s> y"));
    EXPECT_EQ(read_special_names(copy.path()).tokenizer_class, read_special_names(folder.path()).tokenizer_class);
  }
}

TEST(TokenizerFiles, AreToldApartByTheirBytes) {
  const TemporaryFolder folder;
  const std::string vocab = folder.write("v.json", R"({"a":0,"b":1,"ab":2,"<|endoftext|>":3})"),
                    merges = folder.write("m.txt", "a b\n");
  const TokenizerFiles first = read({"bpe", "", vocab, merges});
  const std::string both = testing::read_file(vocab) + testing::read_file(merges);
  EXPECT_EQ(first.checksum, files::to_hex(files::checksum(both.data(), both.size())));
  folder.write("m.txt", "b a\n");
  EXPECT_NE(read({"bpe", "", vocab, merges}).checksum, first.checksum);
  for (const char* type : {"none", "bytes"}) {
    const TokenizerFiles none = read({type, "", "", ""});
    EXPECT_TRUE(none.files.empty() && none.checksum.empty());
    EXPECT_EQ(none.type, type);
  }
}

}  // namespace
}  // namespace metroplex::text::tokenizer_files_test

#include "text/tokenizer.h"

#include <charconv>

#include "base/error.h"
#include "files/file_system.h"
#include "text/json_tokenizer.h"
#include "text/sentencepiece_tokenizer.h"
#include "text/simple_tokenizers.h"

namespace metroplex::text {
namespace {

std::string find_model_file(files::FileSystem& disk, const std::string& type, const std::string& model) {
  MPX_CHECK(!model.empty(), "text", "a tokenizer of type ", type, " needs a file: pass the path of a ",
            type == "sentencepiece" ? "tokenizer.model" : "tokenizer.json (or vocab and merge files)");
  MPX_CHECK(disk.exists(model), "text", model, " does not exist");
  if (!disk.is_directory(model)) return model;
  for (const std::string& name :
       {std::string("tokenizer.json"), std::string("tokenizer.model"), std::string("vocab.json")}) {
    if (type == "sentencepiece" && name.ends_with(".json")) continue;
    if (type == "bpe" && name.ends_with(".model")) continue;
    const std::string path = files::join_path(model, name);
    if (disk.exists(path) && (name != "vocab.json" || !find_merges_file(path).empty())) return path;
  }
  base::throw_error("text", model + " contains neither a tokenizer.json nor a tokenizer.model" +
                                (type == "sentencepiece" ? "" : ", nor vocab.json with merges.txt") +
                                (type.empty() ? "" : " for type " + type));
}

std::unique_ptr<Tokenizer> load_vocab_and_merges(files::FileSystem& disk, const std::string& vocab_file,
                                                 const std::string& merge_file, InvalidUtf8 invalid_utf8) {
  MPX_CHECK(!vocab_file.empty() && !merge_file.empty(), "text",
            "the GPT-2 tokenizer needs both a vocab file and a merge file; pass both");
  const SpecialNames names = read_special_names(files::parent_directory(vocab_file));
  const files::Bytes vocab = disk.map(vocab_file), merges = disk.map(merge_file);
  return std::make_unique<JsonTokenizer>(
      parse_vocab_and_merges(vocab.text(), merges.text(), vocab_file + " + " + merge_file, names), names,
      invalid_utf8);
}

std::unique_ptr<Tokenizer> load_file(files::FileSystem& disk, const std::string& type, const std::string& path,
                                     InvalidUtf8 invalid_utf8) {
  const bool json = path.ends_with(".json") || (type == "bpe" && !path.ends_with(".model"));
  MPX_CHECK(type.empty() || json == (type == "bpe"), "text", path, " is not a tokenizer file of type ", type);
  if (const std::string merges = find_merges_file(path); !merges.empty())
    return load_vocab_and_merges(disk, path, merges, invalid_utf8);
  const files::Bytes bytes = disk.map(path);
  const SpecialNames names = read_special_names(files::parent_directory(path));
  if (!json) return std::make_unique<SentencePieceTokenizer>(bytes.text(), path, names, invalid_utf8);
  JsonTokenizerParts parts = parse_tokenizer_json(bytes.text(), path, names);
  add_tokens(parts, names);
  return std::make_unique<JsonTokenizer>(std::move(parts), names, invalid_utf8);
}

std::unique_ptr<Tokenizer> make_null(const std::string& model) {
  int64_t size = 0;
  const auto [stop, error] = std::from_chars(model.data(), model.data() + model.size(), size);
  MPX_CHECK(error == std::errc() && stop == model.data() + model.size(), "text",
            "the model of a tokenizer of type none must be its vocabulary size, not '", model, "'");
  return std::make_unique<NullTokenizer>(size);
}

}  // namespace

InvalidUtf8 invalid_utf8_from_name(const std::string& name) {
  MPX_CHECK(name == "error" || name == "replace", "text",
            "the handling of invalid UTF-8 must be error or replace, not '", name, "'");
  return name == "error" ? InvalidUtf8::error : InvalidUtf8::replace;
}

const std::vector<std::string>& tokenizer_types() {
  static const std::vector<std::string> kTypes{"none", "bytes", "sentencepiece", "bpe"};
  return kTypes;
}

std::string tokenizer_model_file(const std::string& type, const std::string& model) {
  files::PosixFileSystem disk;
  return find_model_file(disk, type, model);
}

std::string find_merges_file(const std::string& model_file) {
  files::PosixFileSystem disk;
  const std::string merges = files::join_path(files::parent_directory(model_file), "merges.txt");
  const bool named = model_file == "vocab.json" || model_file.ends_with("/vocab.json");
  return named && disk.exists(merges) ? merges : "";
}

std::vector<int32_t> Tokenizer::encode_with_special(std::string_view text) const {
  SpecialTokens special = special_tokens();
  std::vector<int32_t> ids = encode(text);
  ids.insert(ids.begin(), special.before.begin(), special.before.end());
  ids.insert(ids.end(), special.after.begin(), special.after.end());
  return ids;
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& type, const std::string& model,
                                          const std::string& vocab_file, const std::string& merge_file,
                                          InvalidUtf8 invalid_utf8) {
  files::PosixFileSystem disk;
  if (type == "none") return make_null(model);
  if (type == "bytes") return std::make_unique<ByteTokenizer>();
  const auto& types = tokenizer_types();
  if (!type.empty() && type != "bpe" && type != "sentencepiece") {
    const std::string near = base::nearest_name(type, types);
    base::throw_error("text", "there is no tokenizer type '" + type + "'; use none, bytes, sentencepiece or bpe" +
                                  (near.empty() ? "" : "; did you mean " + near + "?"));
  }
  if (model.empty() && type != "sentencepiece" && (!vocab_file.empty() || !merge_file.empty())) {
    return load_vocab_and_merges(disk, vocab_file, merge_file, invalid_utf8);
  }
  return load_file(disk, type, find_model_file(disk, type, model), invalid_utf8);
}

}  // namespace metroplex::text

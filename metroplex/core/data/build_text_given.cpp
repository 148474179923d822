#include "data/build.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "base/error.h"

namespace metroplex::data {
namespace {

std::string quoted(const std::string& word) {
  const bool plain = std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("/._-+=:,@").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (plain && !word.empty()) return word;
  std::string out = "'";
  for (const char c : word) c == '\'' ? out += "'\\''" : out += c;
  return out + "'";
}

std::string tokenizer_words(const config::Data& config) {
  const bool none = config.tokenizer_type == config::TokenizerType::none;
  std::string words = std::string(" --tokenizer-type ") + (none ? "bytes" : config.tokenizer_type.text());
  for (const auto& [option, value] :
       {std::pair<const char*, const std::string&>{" --tokenizer-model ", config.tokenizer_model},
        {" --vocab-file ", config.vocab_file},
        {" --merge-file ", config.merge_file}}) {
    if (!none && !value.empty()) words += option + quoted(value);
  }
  return words;
}

// "text/notes.txt" -> "text/notes_document".
std::string find_dataset(const std::string& text) {
  std::string out = text;
  while (out.size() > 1 && out.back() == '/') out.pop_back();
  const size_t dot = out.rfind('.'), slash = out.rfind('/');
  const size_t name = slash == std::string::npos ? 0 : slash + 1;
  if (dot != std::string::npos && dot > name) out.resize(dot);
  return out + "_document";
}

}  // namespace

std::string way_from_text(files::FileSystem& disk, const std::string& prefix, const config::Data& config) {
  const auto ends = [&](std::string_view end) {
    return prefix.size() >= end.size() && prefix.compare(prefix.size() - end.size(), end.size(), end) == 0;
  };
  if (disk.exists(prefix + ".idx") || !disk.exists(prefix) || ends(".idx") || ends(".bin")) return "";
  const bool none = config.tokenizer_type == config::TokenizerType::none;
  const std::string dataset = find_dataset(prefix);
  return base::concat(
      "'", prefix, "' is text, but training reads a token dataset. Create one with\n  metroplex preprocess --input ",
      quoted(prefix), tokenizer_words(config), " --append-eod --output-prefix ", quoted(dataset),
      "\nand set data.data_path = ", dataset, none ? ", with data.tokenizer_type = bytes" : "");
}

}  // namespace metroplex::data
